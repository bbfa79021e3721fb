package windows

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// stray is where a policy or route leads that nobody wants.
var stray = netip.MustParsePrefix("10.244.9.0/24")

// drift takes away what leads to peer 4, and adds a way to a peer that does not exist.
func (w *windows) drift(kind netKind) error {
	if kind == bridgeKind {
		w.m.Admin().DeleteRoutes(netip.MustParsePrefix("10.244.4.0/24"))
		return w.m.Admin().AddRoute(hns.Route{Dst: stray, NextHop: netip.MustParseAddr("10.99.0.9"),
			Index: w.m.Admin().Adapter("vEthernet (Ethernet)").Index, Metric: 256})
	}
	return policiesOf(w, func(all []hns.Policy) []hns.Policy {
		all = slices.DeleteFunc(all, func(p hns.Policy) bool {
			key, _, ours := parsePolicy(p)
			return ours && (key.Prefix == stray || key.Prefix == netip.MustParsePrefix("10.244.4.0/24"))
		})
		return append(all, hns.RemoteSubnet{Prefix: stray, VSID: 4096, Provider: netip.MustParseAddr("10.99.0.9"), MAC: dataplane.MAC{2}}.Policy())
	})
}

// Whatever call of a pass fails, of HNS or the IP stack, the network stays and all that leads to peers; as long as
// something could not be read, what nobody wants stays too.
func TestNoFailedCallRemovesAnything(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
				w.bring(time.Minute)
				w.mends(time.Minute)
				for n, calls := 0, 0; n <= calls; n++ {
					if err := w.drift(kind); err != nil {
						t.Fatal(err)
					}
					before := strings.Split(w.holds(), "\n")
					w.QueueResync()
					w.m.ForgetLog()
					if n > 0 {
						w.m.Fail(hnstest.Fault{Func: "*", Skip: n - 1, Times: 1, Code: hns.RPCCallFailed})
					}
					err := w.pass()
					calls = max(calls, len(w.m.Log()))
					after := strings.Split(w.holds(), "\n")
					for _, line := range before {
						unwanted := strings.Contains(line, stray.Addr().String())
						if (!unwanted || reconcile.IsUnknown(err)) && !slices.Contains(after, line) {
							t.Errorf("call %d failed (%v): lost %s", n, err, line)
						}
					}
					if _, known := w.links[w.devices[0].Name]; !known {
						t.Errorf("call %d failed (%v): the network is forgotten", n, err)
					}
					w.m.Heal()
					w.bring(time.Minute)
					w.check(inStep[kind])
				}
			})
		})
	}
}
