package windows

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
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

// A host by DHCP without addresses has nothing to save, and does not keep its network. One that had a static address, which
// only the journal still has, keeps both.
func TestCleanupWithoutAddress(t *testing.T) {
	for _, dhcp := range []bool{false, true} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
			admin := w.m.Admin()
			if dhcp {
				if err := admin.Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second) // longer than the outage
				w.local(hostconfig.Addresses(admin.Adapter("Ethernet"))[0].Prefix)
			}
			w.bring(5 * time.Minute)
			w.mends(time.Minute)
			if err := admin.Readdress("vEthernet (Ethernet)"); err != nil { // none
				t.Fatal(err)
			}
			w.restart()
			removed, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, false)
			waits := errors.As(err, new(*dataplane.WaitError))
			j, readErr := hostconfig.ReadJournal(w.opts.journalPath())
			if waits == dhcp || (err == nil) != dhcp || (len(admin.Networks()) == 0) != dhcp || len(removed) != 1 || (j.LastGood == nil) != dhcp || readErr != nil {
				t.Errorf("DHCP %t: removed %q, %v; HNS has %s, and the journal %+v, %v", dhcp, removed, err, admin.Networks(), j, readErr)
			}
		})
	}
}

// isDenied reports whether err is that of a call that was denied.
func isDenied(err error) bool {
	e, ok := errors.AsType[*hns.Error](err)
	return ok && e.Code == hns.AccessDenied
}
