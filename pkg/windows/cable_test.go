package windows

import (
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// Without a cable the host has no use of its addresses: its network stays.
func TestNoRollBackWithoutCable(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second, VirtualDown: true}, func(w *windows) {
		_ = w.pass()
		if err := w.m.Admin().SetUp("Ethernet", false); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(time.Second) {
			_ = w.pass()
		}
		if len(w.m.Admin().Networks()) != 1 || w.log.Count("cause="+causeRolledBack) > 0 {
			t.Errorf("logged\n%s", w.log)
		}
	})
}

// The cable of a host with DHCP is out for 5 minutes, while the network is being made or later. After it is back in, the virtual
// adapter comes up after some seconds and gets its lease after 30. The network stays.
func TestCableBackIn(t *testing.T) {
	for name, wait := range map[string]time.Duration{"being made": 2 * time.Second, "later": 2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{Outage: 10 * time.Second}, func(w *windows) {
				admin := w.m.Admin()
				configured := func(adapter string) {
					if err := admin.Configure(adapter, hns.Persistent{DHCP: true}); err != nil {
						t.Fatal(err)
					}
				}
				plug := func(up bool, adapters ...string) {
					for _, a := range adapters {
						if err := admin.SetUp(a, up); err != nil {
							t.Fatal(err)
						}
					}
				}
				configured("Ethernet")
				time.Sleep(20 * time.Second)
				w.local(hostconfig.Addresses(admin.Adapter("Ethernet"))[0].Prefix)
				for len(admin.Networks()) == 0 {
					w.passes(time.Second)
				}
				w.passes(wait)
				made := admin.Networks()
				plug(false, "Ethernet", "vEthernet (Ethernet)")
				w.m.Turn(func(k *hnstest.Knobs) { k.Outage = -1 })
				configured("vEthernet (Ethernet)") // the lease is gone until Outage is set
				w.passes(5 * time.Minute)
				plug(true, "Ethernet")
				w.passes(5 * time.Second)
				plug(true, "vEthernet (Ethernet)")
				w.passes(25 * time.Second)
				w.m.Turn(func(k *hnstest.Knobs) { k.Outage = 0 })
				w.bring(5 * time.Minute)
				w.mends(time.Minute)
				if addrs := hostconfig.Addresses(admin.Adapter("vEthernet (Ethernet)")); len(addrs) != 1 || addrs[0].Manual {
					t.Errorf("the host has %+v, which DHCP did not give", addrs)
				}
				if got := admin.Networks(); len(got) != 1 || network(t, got[0]).ID != network(t, made[0]).ID || w.log.Count("cause="+causeRolledBack) > 0 {
					t.Errorf("logged\n%s", w.log)
				}
			})
		})
	}
}

func network(t *testing.T, document []byte) hns.Network {
	t.Helper()
	n, err := hns.DecodeNetwork(document)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
