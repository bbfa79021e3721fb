package windows

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// Windows refuses to delete a route to a peer, and then loses it with the network: the host does not get it back. It gets back
// an on-link route of another program into the pod network.
func TestCleanupRestoresNoPeer(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
		w.addMetadataRoute()
		onLink := hns.Route{Dst: netip.MustParsePrefix("10.244.77.0/24"), NextHop: netip.IPv4Unspecified(), Index: w.m.Admin().Adapter("Ethernet").Index}
		if err := w.m.Admin().AddRoute(onLink); err != nil {
			t.Fatal(err)
		}
		w.bring(5 * time.Minute)
		w.mends(time.Minute)
		w.restart()
		w.m.Turn(func(k *hnstest.Knobs) { k.LoseRoutes = true })
		w.m.Fail(hnstest.Fault{Func: "DeleteIpForwardEntry2", Match: "10.244.4.0/24", Code: hns.AccessDenied})
		if _, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, false); !isDenied(err) {
			t.Errorf("got %v", err)
		}
		w.check(`route 0.0.0.0/0 via 10.99.0.1 on Ethernet
route 10.244.77.0/24 via 0.0.0.0 on Ethernet
route 169.254.169.254/32 via 10.99.0.1 on Ethernet`)
	})
}

// isDenied reports whether err is that of a call that was denied.
func isDenied(err error) bool {
	e, ok := errors.AsType[*hns.Error](err)
	return ok && e.Code == hns.AccessDenied
}
