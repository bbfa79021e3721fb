package windows

import (
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// The host's address changed, by an administrator or DHCP, and HNS keeps the former one of its network or not. An overlay that
// would send from an address that is nobody's is made again; a bridge sends from none. Nobody restores the former address, and
// a Chooser follows the change, with --iface=Ethernet or, with DHCP, with the former address.
func TestHostReaddressed(t *testing.T) {
	for _, kind := range kinds {
		for _, keeps := range []bool{false, true} {
			for _, dhcp := range []bool{false, true} {
				onWindows(t, devicesOf(kind), hnstest.Knobs{FirstIP: keeps}, func(w *windows) {
					admin, iface := w.m.Admin(), "Ethernet"
					readdress := admin.Readdress
					if dhcp {
						if err := admin.Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
							t.Fatal(err)
						}
						readdress, iface = admin.Lease, hostconfig.Addresses(admin.Adapter("Ethernet"))[0].Prefix.Addr().String()
					}
					var chooser underlay.Chooser
					follow := func() {
						o := underlay.Options{Iface: []string{iface}}
						d, err := chooser.Choose(time.Now(), snap(t, w.m, o), o, true, false)
						if err != nil {
							t.Fatal(err)
						}
						w.local(netip.PrefixFrom(d.Link.V4, 24))
					}
					follow()
					w.bring(time.Minute)
					w.mends(time.Minute)
					before := w.network.ID
					other := netip.MustParsePrefix("10.99.0.77/24")
					if err := readdress("vEthernet (Ethernet)", other); err != nil {
						t.Fatal(err)
					}
					follow()
					w.mends(3 * time.Minute)
					if again := w.network.ID != before; again != (keeps && kind == overlayKind) {
						t.Errorf("%s, keeps %t, DHCP %t: made again %t", kind, keeps, dhcp, again)
					}
					if kind == overlayKind && w.network.ManagementIP != other.Addr() {
						t.Errorf("it sends from %s", w.network.ManagementIP)
					}
					if got := hostconfig.Addresses(admin.Adapter("vEthernet (Ethernet)")); len(got) != 1 || got[0].Prefix != other || got[0].Manual == dhcp {
						t.Errorf("%s, keeps %t, DHCP %t: the host has %+v", kind, keeps, dhcp, got)
					}
					if n := w.log.Count("cause=" + causeNetworkRemade); n > 1 {
						t.Errorf("%s, keeps %t: %d times made again", kind, keeps, n)
					}
				})
			}
		}
	}
}

// HNS keeps the former address of an overlay, and the host has another one twice, each time for less than Pace.Wrong. In between, it
// has the former one while HNS does not answer, or none: the times do not add up, and the network stays.
func TestHostReaddressedForAMoment(t *testing.T) {
	for _, silent := range []bool{false, true} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{FirstIP: true}, func(w *windows) {
			w.bring(time.Minute)
			w.mends(time.Minute)
			before := w.network.ID
			has := func(addrs ...netip.Prefix) {
				t.Helper()
				if err := w.m.Admin().Readdress("vEthernet (Ethernet)", addrs...); err != nil {
					t.Fatal(err)
				}
				for _, a := range addrs {
					w.local(a)
				}
			}
			other := netip.MustParsePrefix("10.99.0.77/24")
			has(other)
			w.passes(w.pace.Wrong - 5*time.Second)
			if silent {
				has(hnstest.HostAddr)
				w.m.Fail(hnstest.Fault{Code: hns.RPCServerUnavailable})
				w.passes(time.Minute)
			} else {
				has()
				w.passes(10 * time.Second)
			}
			has(other)
			w.m.Heal()
			w.passes(w.pace.Wrong - 5*time.Second)
			has(hnstest.HostAddr)
			w.bring(time.Minute)
			if w.network.ID != before || w.log.Count("cause="+causeNetworkRemade) > 0 {
				t.Errorf("silent %t: the network was made again:\n%s", silent, w.log)
			}
		})
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
