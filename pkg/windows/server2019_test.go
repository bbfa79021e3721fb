package windows

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// manyPeers are paths to n peers.
func manyPeers(dev dataplane.Device, n int) (paths []*dataplane.Path) {
	for i := range n {
		p := winPath(dev, i%250+3)
		p.Dst = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 2), 0}), 24)
		paths = append(paths, p)
	}
	return paths
}

// Before HNS 10, a request has at most 50 policies, whether HNS would accept more or not.
func TestSmallBatches(t *testing.T) {
	for _, most := range []int{0, oldBatchSize} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Version: hns.Version{Major: 9, Minor: 4}, MaxPolicies: most}, func(w *windows) {
			w.state.Paths = manyPeers(w.devices[0], 200)
			w.bring(time.Minute)
			w.state.Paths = w.state.Paths[:50]
			w.bring(time.Minute)
			largest := 0
			for _, c := range w.m.Log() {
				if c.Func == "HcnModifyNetwork" {
					largest = max(largest, strings.Count(c.Args[1], `"Settings":`)-1) // the request has Settings, too
					if c.Result != 0 {
						t.Errorf("refused: %.100s", c.Text)
					}
				}
			}
			if largest != oldBatchSize {
				t.Errorf("the largest request has %d policies", largest)
			}
		})
	}
}

// HNS refuses the policy HostRoute. That is a warning: the peers have their policies, the node is ready, and nothing is
// tried again and again. Another network, or another run, tries again.
func TestHostRouteRefused(t *testing.T) {
	for code, partial := range map[hns.Code]bool{hns.InvalidPolicyType: false, hns.InvalidPolicy: true, hns.InvalidParameter: true} {
		t.Run(fmt.Sprintf("0x%x, partial %t", code, partial), func(t *testing.T) {
			knobs := hnstest.Knobs{Version: hns.Version{Major: 9, Minor: 4}, HostRouteRefused: code, PartialBatches: partial}
			onWindows(t, overlayDevice(ownSubnet), knobs, func(w *windows) {
				w.bring(time.Minute)
				w.mends(time.Minute)
				peers, hasRoute := 0, false
				count := func() {
					peers, hasRoute = 0, false
					for _, p := range w.network.Policies {
						if p.IsRemoteSubnet() {
							peers++
						}
						hasRoute = hasRoute || p.IsHostRoute()
					}
				}
				w.QueueResync()
				w.bring(time.Minute)
				if count(); peers != 3 || hasRoute || len(w.refused) > 0 || w.log.Count("cause="+causeNoHostRoute, "level=WARN") != 1 {
					t.Errorf("%d peers, HostRoute %t, refused %v", peers, hasRoute, w.refused)
				}
				w.m.ForgetLog()
				for range 10 {
					w.QueueResync()
					w.passes(time.Minute)
				}
				if i := slices.IndexFunc(w.m.Log(), func(c hnstest.Call) bool { return c.Func == "HcnModifyNetwork" }); i >= 0 {
					t.Errorf("it was tried again: %s", w.m.Log()[i])
				}
				w.m.Turn(func(k *hnstest.Knobs) { k.HostRouteRefused = 0 })
				w.restart()
				w.bring(time.Minute)
				w.QueueResync()
				w.bring(time.Minute)
				if count(); peers != 3 || !hasRoute {
					t.Errorf("after a restart %d peers, HostRoute %t", peers, hasRoute)
				}
			})
		})
	}
}

// Another error of HNS for the policy HostRoute is one of the pass: the next ones try again.
func TestHostRouteFails(t *testing.T) {
	const unspecified, accessDenied = hns.Code(0x80004005), hns.Code(0x80070005)
	for _, code := range []hns.Code{unspecified, accessDenied} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{HostRouteRefused: code}, func(w *windows) {
			w.passes(2 * time.Minute)
			if err := w.pass(); err == nil || w.log.Count("cause="+causeNoHostRoute) > 0 {
				t.Errorf("0x%x: got %v, logged\n%s", code, err, w.log)
			}
			w.m.Turn(func(k *hnstest.Knobs) { k.HostRouteRefused = 0 })
			w.bring(time.Minute)
			w.check(overlayInStep)
		})
	}
}
