package windows

import (
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
)

// A network that flanneld makes again, because of another subnet or because HNS lost it, has no entries that somebody else
// changed. What somebody deletes from it is a repair.
func TestRemadeIsNoRepair(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
			repaired := map[string]int{}
			w.opts.Repairs = dataplane.NewRepairs(w.opts.Log, func(what string, n int) { repaired[what] += n })
			w.restart()
			w.bring(time.Minute)
			w.mends(time.Minute)
			other := netip.MustParsePrefix("10.244.7.0/24")
			w.devices = []dataplane.Device{overlayDevice(other)}
			if kind == bridgeKind {
				w.devices = []dataplane.Device{bridgeDevice(other)}
			}
			w.bring(time.Minute)
			w.mends(time.Minute)
			if err := w.client.DeleteNetwork(w.t.Context(), w.network.ID); err != nil {
				t.Fatal(err)
			}
			w.mends(5 * time.Minute)
			if len(repaired) != 0 || w.network == nil {
				t.Errorf("%s: counted as repairs: %v", kind, repaired)
			}
			if err := w.drift(kind); err != nil {
				t.Fatal(err)
			}
			w.mends(time.Minute)
			if len(repaired) == 0 {
				t.Errorf("%s: what somebody deleted is not counted as a repair", kind)
			}
		})
	}
}
