package etcd

import (
	"context"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
)

// A leading slash is a part of the keys' names. Who has one too many or too few learns of it.
func TestPrefixWithoutSlash(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	if _, err := st.Put(t.Context(), "coreos.com/network/config", "ours"); err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1)
	n := start(t, srv.Endpoint(), func(o *Options) { o.Prefix = "coreos.com/network/" })
	go n.WatchConfig(t.Context(), func(raw []byte) { told <- string(raw) }) //nolint:errcheck // it ends with the test
	if got := <-told; got != "ours" {
		t.Errorf("the configuration is %q", got)
	}
	n.publish(outOfTheWay("192.168.64.1"), mac1)
	resp, err := st.Get(t.Context(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	leases := 0
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); strings.HasPrefix(key, "coreos.com/network/subnets/") {
			leases++
		} else if strings.HasPrefix(key, "/") {
			t.Errorf("there is a key %s", key)
		}
	}
	if leases != 1 {
		t.Errorf("%d leases among %v", leases, resp.Kvs)
	}

	astray := start(t, srv.Endpoint(), nil)
	go astray.WatchConfig(t.Context(), func([]byte) { t.Error("takes the configuration of another prefix") }) //nolint:errcheck // it ends with the test
	eventually.True(t, "it says where there is one", func() bool { return astray.logs.Count("other=coreos.com/network") == 1 })
	other := start(t, srv.Endpoint(), func(o *Options) { o.Prefix = "elsewhere" })
	ctx, cancel := context.WithCancel(t.Context())
	go other.WatchConfig(ctx, func([]byte) {}) //nolint:errcheck // it ends with the test
	eventually.True(t, "another only waits", func() bool { return other.logs.Count("key=elsewhere/config") == 1 })
	cancel()
	if others := other.logs.With().Values("other"); strings.Join(others, "") != "" {
		t.Errorf("it says\n%s", other.logs)
	}
}
