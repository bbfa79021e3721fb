package windows

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// A policy that HNS refuses blocks no other, is named, and goes in when HNS takes it; whatever HNS does with the rest of
// a refused request, and with a policy that is there already.
func TestRefusedPolicy(t *testing.T) {
	for _, knobs := range []hnstest.Knobs{{}, {PartialBatches: true}, {AcceptDuplicates: true}, {PartialBatches: true, AcceptDuplicates: true}} {
		t.Run(fmt.Sprintf("partial %t, duplicates %t", knobs.PartialBatches, knobs.AcceptDuplicates), func(t *testing.T) {
			dev := overlayDevice(ownSubnet)
			onWindows(t, dev, knobs, func(w *windows) {
				for n := 6; n <= 80; n++ {
					w.state.Paths = append(w.state.Paths, winPath(dev, n))
				}
				w.m.Fail(hnstest.Fault{Func: "HcnModifyNetwork", Match: `"10.244.77.0/24"`, Code: hns.InvalidPolicy})
				w.m.Fail(hnstest.Fault{Func: "HcnModifyNetwork", Match: `"10.244.50.0/24"`, Code: hns.InvalidPolicy})
				for w.network == nil || len(w.peersThere()) == 0 { // until the pass that adds them
					if w.pass() == nil {
						t.Fatal("a refusal is no error")
					}
				}
				for range 3 { // the first finds out all, and it stays so
					said := w.problems[len(w.problems)-1]
					if !logtest.Names(said, "policies 10.244.77.0/24", "policies 10.244.50.0/24") || strings.Count(said, "policies ") != 2 {
						t.Errorf("got %s, want an error that names two policies", said)
					}
					if got := dsts(w.refused); !slices.Equal(got, []string{"10.244.50.0/24", "10.244.77.0/24"}) {
						t.Errorf("refused are %v, want the two peers", got)
					}
					if n := strings.Count(w.holds(), ": VNI 4096"); n != 76 {
						t.Errorf("%d policies are there, want 76", n)
					}
					if w.pass() == nil {
						t.Fatal("a refusal is no error")
					}
				}
				w.m.Heal()
				w.bring(time.Minute)
				if n := strings.Count(w.holds(), ": VNI 4096"); n != 78 {
					t.Errorf("%d policies are there, want 78", n)
				}
				w.state.Paths = w.state.Paths[:3]
				w.bring(0)
				w.check(overlayInStep)
			})
		})
	}
}

// peersThere are the policies that lead to peers.
func (w *windows) peersThere() []string {
	return slices.DeleteFunc(strings.Split(w.holds(), "\n"), func(line string) bool { return !strings.Contains(line, ": VNI") })
}

// HNS refuses one policy of a request. Those that were added in the halves of the request can be removed at once.
func TestRemovedAfterRefusal(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{HostRouteRefused: hns.InvalidPolicyType}, func(w *windows) {
		w.bring(time.Minute)
		if n := len(w.peersThere()); n != 3 {
			t.Fatalf("%d policies are there, want 3", n)
		}
		w.state.Paths = w.state.Paths[:1]
		if err := w.pass(); err != nil || len(w.peersThere()) != 1 {
			t.Errorf("got %v, and %q", err, w.peersThere())
		}
	})
}

// Another hand was quicker with one of the peers: HNS refuses the request, and may have done a part of it.
func TestAddedByAnother(t *testing.T) {
	for _, partial := range []bool{false, true} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{PartialBatches: partial}, func(w *windows) {
			all := w.state.Paths
			w.state.Paths = nil
			w.bring(time.Minute)
			if err := policiesOf(w, func(have []hns.Policy) []hns.Policy {
				return append(have, hns.RemoteSubnet{Prefix: all[1].Dst, VSID: 4096, Provider: netip.MustParseAddr("10.99.0.44"), MAC: dataplane.MAC{2}}.Policy())
			}); err != nil {
				t.Fatal(err)
			}
			w.state.Paths = all
			w.m.ForgetLog()
			if err := w.pass(); err == nil || strings.Count(err.Error(), "policies ") != 1 || !logtest.Names(err.Error(), "policies 10.244.4.0/24") {
				t.Errorf("partial %t: got %v, want an error that names one policy", partial, err)
			}
			if n := len(w.peersThere()); n != 3 {
				t.Errorf("partial %t: %d policies are there, want 3", partial, n)
			}
			w.bring(time.Minute)
			w.check(overlayInStep)
		})
	}
}

// A request that had its effect although it failed leaves nothing twice.
func TestEffectDespiteError(t *testing.T) {
	for _, duplicates := range []bool{false, true} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{AcceptDuplicates: duplicates}, func(w *windows) {
			w.m.Fail(hnstest.Fault{Func: "HcnModifyNetwork", Times: 1, Code: hns.RPCCallFailed, After: true})
			w.m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Times: 1, Code: hns.RPCCallFailed, After: true})
			w.bring(time.Minute)
			w.mends(time.Minute)
			w.check(overlayInStep)
			w.m.Fail(hnstest.Fault{Func: "HcnModifyNetwork", Times: 1, Code: hns.RPCCallFailed, After: true})
			w.state.Paths = w.state.Paths[1:]
			w.bring(time.Minute)
			if strings.Contains(w.holds(), "10.244.3.0/24") {
				t.Error("a peer that is gone still has its policy")
			}
		})
	}
}
