package e2e

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// host is the IP configuration of an adapter of a Windows node, without what
// flanneld adds.
type host struct {
	Addresses []netip.Prefix
	DNS       []netip.Addr
	Routes    []string
	index     int
}

func hostOn(t *testing.T, n *lab.Node, adapter string) (h host) {
	t.Helper()
	r := order(t, n, windows.Order{})
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

// trouble is a behaviour of the machine while flanneld.exe brings up its
// network.
type trouble struct {
	name  string
	knobs hnstest.Knobs
	hand  func(host) []hns.Route // further routes before the start
	args  []string               // further arguments of flanneld.exe
	waits []wait                 // what flanneld.exe waits for, in this order
	logs  []string               // causes that must be logged once
}

// wait is an event that the test triggers once the log shows that flanneld.exe
// waits for it.
type wait struct {
	cause string // in the log
	comes string // knobs that end the wait, as JSON
}

var metadataRoute = hns.Route{Dst: netip.MustParsePrefix("169.254.169.254/32"),
	NextHop: netip.MustParseAddr("192.168.100.1"), Metric: 3}

var troubles = []trouble{
	{name: "HNS late", knobs: hnstest.Knobs{Down: true}, waits: []wait{{"hns-silent", `{"Down":false}`}}},
	{name: "addresses late", knobs: hnstest.Knobs{Outage: -1, ManagementIP: -1, DRMAC: -1, KillTCP: true},
		waits: []wait{
			{"address-missing", `{"Outage":0}`}, {"management-ip-missing", `{"ManagementIP":0,"DRMAC":0}`}}},
	{name: "APIPA, nothing else comes back", knobs: hnstest.Knobs{Outage: 2 * time.Second, APIPA: true, LoseDNS: true,
		LoseGateway: true, LoseRoutes: true, KillTCP: true},
		logs: []string{"address-restored", "dns-restored"}},
	{name: "gateway, metadata route, DNS servers lost",
		knobs: hnstest.Knobs{Outage: time.Second, LoseDNS: true, LoseGateway: true, LoseRoutes: true},
		logs:  []string{"dns-restored"}},
	{name: "metric lost", knobs: hnstest.Knobs{Outage: time.Second, LoseMetric: true},
		logs: []string{"route-restored"}},
	{name: "two default routes", args: []string{"-iface="}, hand: func(h host) []hns.Route {
		return []hns.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: netip.MustParseAddr("192.168.100.77"),
			Metric: 500}}
	}},
}

// A cluster whose Windows nodes each have another trouble at the start, and a
// VNI of more than 16 bits.
func TestWindowsBringUp(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 1 + len(troubles), Windows: len(troubles)},
		`{"Type":"vxlan","VNI":70000,"Port":4789}`)
	must(t, l.Nodes[0].Start())
	before := map[string]host{}
	for i, c := range troubles {
		n := l.Nodes[1+i]
		adapter := order(t, n, windows.Order{}).Adapters[1]
		routes := []hns.Route{metadataRoute}
		if c.hand != nil {
			routes = append(routes, c.hand(host{})...)
		}
		for _, r := range routes {
			r.Index = adapter.Index
			order(t, n, windows.Order{AddRoute: &r})
		}
		order(t, n, windows.Order{Turn: []byte(marshal(t, c.knobs))})
		before[n.Name] = hostOn(t, n, lab.Adapter)
		must(t, n.Start(c.args...))
	}
	for i, c := range troubles {
		n := l.Nodes[1+i]
		for _, w := range c.waits {
			withinOf(t, long, c.name+": waits, cause="+w.cause, func() error {
				if len(n.Records(0).With("cause="+w.cause)) == 0 {
					return fmt.Errorf("the log is\n%s", n.Log())
				}
				return nil
			})
			order(t, n, windows.Order{Turn: []byte(w.comes)})
		}
	}
	for i, c := range troubles {
		n := l.Nodes[1+i]
		withinOf(t, long, c.name+": ready", func() error { return ready(t, n) })
		withinOf(t, long, "configuration restored", func() error {
			after := hostOn(t, n, "vEthernet (Ethernet)")
			if after.index = before[n.Name].index; !reflect.DeepEqual(after, before[n.Name]) {
				return fmt.Errorf("the host configuration is %+v, was %+v", after, before[n.Name])
			}
			return nil
		})
		for _, what := range c.logs {
			once(t, n, 0, "cause="+what) // what was restored stays
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
		checkMachine(t, n)
	}
}
