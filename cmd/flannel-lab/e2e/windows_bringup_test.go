package e2e

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest"
)

// host is what a Windows node's adapter has of its own.
type host struct {
	Addresses []netip.Prefix
	DNS       []netip.Addr
	Routes    []string
	index     int
}

func hostOn(t *testing.T, n *lab.Node, adapter string) (h host) {
	t.Helper()
	r := order(t, n, hnstest.Order{})
	i := slices.IndexFunc(r.Adapters, func(a hns.Adapter) bool { return a.Name == adapter })
	if i < 0 {
		return h
	}
	for _, a := range r.Adapters[i].Addrs {
		h.Addresses = append(h.Addresses, a.Prefix)
	}
	h.DNS, h.index = r.Adapters[i].DNS, r.Adapters[i].Index
	for _, route := range r.Routes {
		if route.Index == r.Adapters[i].Index && !podRoute(route) {
			h.Routes = append(h.Routes, fmt.Sprintf("%s via %s metric %d", route.Dst, route.NextHop, route.Metric))
		}
	}
	slices.Sort(h.Routes)
	return h
}

// trouble is what befalls a machine while flanneld.exe brings its network up.
type trouble struct {
	name  string
	knobs hnstest.Knobs
	hand  func(host) []hns.Route // further routes that it has from the start
	args  []string               // beside those of every node; "" for -iface=Ethernet
	later time.Duration          // after which HNS is up
	says  []string               // what /readyz says meanwhile
	logs  []string               // what is logged, once
}

var metadataRoute = hns.Route{Dst: netip.MustParsePrefix("169.254.169.254/32"), NextHop: netip.MustParseAddr("192.168.100.1"), Metric: 3}

var troubles = []trouble{
	{name: "HNS late", knobs: hnstest.Knobs{Down: true}, later: 6 * time.Second, says: []string{"waiting for the Host Networking Service"}},
	{name: "addresses late", knobs: hnstest.Knobs{Outage: 7 * time.Second, ManagementIP: 4 * time.Second, DRMAC: time.Second, KillTCP: true}, says: []string{"come back on vEthernet (Ethernet)", "HNS to learn the host's address"}},
	{name: "APIPA, nothing else comes back", knobs: hnstest.Knobs{Outage: 2 * time.Second, APIPA: true, LoseDNS: true, LoseGateway: true, LoseRoutes: true, KillTCP: true},
		logs: []string{"put back an address", "put back the DNS servers"}},
	{name: "gateway, metadata route, DNS servers lost", knobs: hnstest.Knobs{Outage: time.Second, LoseDNS: true, LoseGateway: true, LoseRoutes: true},
		logs: []string{"put back the DNS servers"}},
	{name: "metric lost", knobs: hnstest.Knobs{Outage: time.Second, LoseMetric: true}, logs: []string{"put back a route"}},
	{name: "two default routes", args: []string{"-iface="}, hand: func(h host) []hns.Route {
		return []hns.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: netip.MustParseAddr("192.168.100.77"), Metric: 500}}
	}},
}

// A cluster whose Windows nodes all have their troubles when they start, each another, and a VNI of more than 16 bits.
func TestWindowsBringUp(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 1 + len(troubles), Windows: len(troubles)}, `{"Type":"vxlan","VNI":70000,"Port":4789}`)
	must(t, l.Nodes[0].Start())
	before := map[string]host{}
	for i, c := range troubles {
		n := l.Nodes[1+i]
		adapter := order(t, n, hnstest.Order{}).Adapters[1]
		routes := []hns.Route{metadataRoute}
		if c.hand != nil {
			routes = append(routes, c.hand(host{})...)
		}
		for _, r := range routes {
			r.Index = adapter.Index
			order(t, n, hnstest.Order{AddRoute: &r})
		}
		order(t, n, hnstest.Order{Turn: []byte(marshal(t, c.knobs))})
		before[n.Name] = hostOn(t, n, lab.Adapter)
		must(t, n.Start(c.args...))
		if c.later > 0 {
			time.AfterFunc(c.later, func() { _, _ = n.Windows.Do(hnstest.Order{Turn: []byte(`{"Down":false}`)}) })
		}
	}
	for i, c := range troubles {
		n := l.Nodes[1+i]
		for _, what := range c.says {
			withinOf(t, long, c.name+": /readyz says "+what, func() error { return unready(t, n, what) })
		}
	}
	for i, c := range troubles {
		n := l.Nodes[1+i]
		withinOf(t, long, c.name+": ready", func() error { return ready(t, n) })
		withinOf(t, long, "has what it had", func() error {
			now := hostOn(t, n, "vEthernet (Ethernet)")
			if now.index = before[n.Name].index; !reflect.DeepEqual(now, before[n.Name]) {
				return fmt.Errorf("the host has %+v, had %+v", now, before[n.Name])
			}
			return nil
		})
		for _, what := range c.logs {
			if strings.Count(n.Log(), what) != 1 {
				t.Errorf("%s: %q is not logged once", c.name, what)
			}
		}
	}
	follow(t, l, "bring-up")
	for key, v := range leases(t, l) {
		if v.BackendData.VNI != 70000 {
			t.Errorf("the VNI of %s is %d", key, v.BackendData.VNI)
		}
	}
	a, b := pod(t, l.Nodes[0], "a"), pod(t, l.Nodes[1], "b")
	must(t, reach(t.Context(), a, b))
	must(t, reach(t.Context(), b, a))
	for _, n := range l.Nodes[1:] {
		sound(t, n)
	}
}
