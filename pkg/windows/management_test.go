package windows

import (
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
)

// The host's address changed, and HNS keeps the former one of its network or not. An overlay that would send from an
// address that is nobody's is made again; a bridge sends from none.
func TestHostReaddressed(t *testing.T) {
	for _, kind := range kinds {
		for _, keeps := range []bool{false, true} {
			onWindows(t, devicesOf(kind), hnstest.Knobs{FirstIP: keeps}, func(w *windows) {
				w.bring(time.Minute)
				w.mends(time.Minute)
				before := w.network.ID
				other := netip.MustParsePrefix("10.99.0.77/24")
				if err := w.m.Admin().Readdress("vEthernet (Ethernet)", other); err != nil {
					t.Fatal(err)
				}
				w.devices = []dataplane.Device{w.devices[0]} // as the daemon's choice of the underlay follows
				edit(&w.devices[0], func(n *dataplane.Network) { n.Local = other.Addr() })
				w.mends(3 * time.Minute)
				if again := w.network.ID != before; again != (keeps && kind == overlayKind) {
					t.Errorf("%s, keeps %t: made again %t", kind, keeps, again)
				}
				if kind == overlayKind && w.network.ManagementIP != other.Addr() {
					t.Errorf("it sends from %s", w.network.ManagementIP)
				}
				if n := w.log.Count("cause=" + causeNetworkRemade); n > 1 {
					t.Errorf("%s, keeps %t: %d times made again", kind, keeps, n)
				}
			})
		}
	}
}

// HNS saw the address of the host's that Windows chose by chance, and keeps that when the right one is put back.
func TestManagementAddressByChance(t *testing.T) {
	for _, kind := range kinds {
		for _, keeps := range []bool{false, true} {
			onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, APIPA: true, FirstIP: keeps}, func(w *windows) {
				time.AfterFunc(time.Minute, func() { w.m.Turn(func(k *hnstest.Knobs) { k.APIPA = false }) })
				w.addMetadataRoute()
				w.bring(5 * time.Minute)
				w.mends(time.Minute)
				w.hasAll()
				if kind == overlayKind && w.network.ManagementIP != hnstest.HostAddr.Addr() {
					t.Errorf("keeps %t: it sends from %s", keeps, w.network.ManagementIP)
				}
			})
		}
	}
}
