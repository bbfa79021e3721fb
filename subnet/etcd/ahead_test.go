package etcd

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/nettest"
)

func TestAhead(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.ClientCerts())
	o := Options{Endpoints: []string{"https://" + nettest.Address(t), s.Endpoint()},
		CAFile: s.File("ca.crt"), CertFile: s.File("client.crt"), KeyFile: s.File("client.key")}
	if ahead, err := Ahead(t.Context(), o); err != nil || ahead.Abs() > time.Minute { // half of what the request took may be in it
		t.Errorf("on this machine's own clock: %v, %v", ahead, err)
	}
	if _, err := Ahead(t.Context(), Options{}); err == nil {
		t.Error("no endpoint is no error")
	}
	o.Endpoints = o.Endpoints[:1]
	if _, err := Ahead(t.Context(), o); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody answers: %v", err)
	}
}
