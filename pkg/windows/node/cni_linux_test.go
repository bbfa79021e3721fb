package node

// Wine has no sockets of files.

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/status"
	"flannel/subnet/kube"
)

// The daemon knows the node's addresses. One that is given stays, and the other is asked for.
func TestManagementAddresses(t *testing.T) {
	subnetFile := filepath.Join(t.TempDir(), "subnet.env")
	v4, v6, given := netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("fd00:99::2"), netip.MustParseAddr("10.99.0.9")
	board := &status.Board{}
	board.Add(status.OfNode, func(r *status.Report) {
		r.Node = &status.Node{Underlay: status.Underlay{Addrs: []netip.Addr{v4, v6}}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- status.Keep(ctx, status.Socket(subnetFile), status.Handler(board, nil, nil, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	defer func() {
		cancel()
		<-ended // why it ended is not the question
	}()
	eventually.Nil(t, "it listens", func() error { _, err := status.Ask(ctx, status.Socket(subnetFile)); return err })
	for _, c := range []struct{ ip, want netip.Addr }{{netip.Addr{}, v4}, {given, given}} {
		s := conflist.Spec{Plugin: "sdnbridge", Network: "cbr0", Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ManagementIP: c.ip}
		from := CNISources{NetConfRemote: true, SubnetFile: subnetFile, Underlay: noUnderlay}
		if _, err := from.Complete(t.Context(), &s); err != nil || s.ManagementIP != c.want || s.ManagementIP6 != v6 {
			t.Errorf("given %s: %s, %s, %v", c.ip, s.ManagementIP, s.ManagementIP6, err)
		}
	}
}

// A daemon that is silent takes all of the time for this machine, and none of the Kubernetes API's.
func TestSilentDaemonAndAPI(t *testing.T) {
	subnetFile := filepath.Join(t.TempDir(), "subnet.env")
	daemon, err := net.Listen("unix", status.Socket(subnetFile))
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	var asked atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "", http.StatusForbidden)
	}))
	defer api.Close()
	s := conflist.Spec{Plugin: "sdnbridge", Network: "cbr0", Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	from := CNISources{NetConfRemote: true, SubnetFile: subnetFile, Underlay: noUnderlay, Within: time.Minute, local: 50 * time.Millisecond}
	from.Services = func(ctx context.Context) ([]netip.Prefix, error) {
		return kube.ServiceNetworks(ctx, kube.Options{APIURL: api.URL})
	}
	if _, err := from.Complete(t.Context(), &s); !errors.Is(err, status.ErrNoAnswer) || asked.Load() == 0 {
		t.Errorf("the API got %d requests; %v", asked.Load(), err)
	}
}
