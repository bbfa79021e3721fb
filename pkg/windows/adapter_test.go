package windows

import (
	"errors"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/windows/hns"
)

// Neither prepare nor the daemon binds a switch to an adapter on which it cannot work. Both name the adapter. They warn of one
// on which it may not work.
func TestUnsuitableAdapter(t *testing.T) {
	both := map[netKind]string{overlayKind: "VlanID 42", bridgeKind: "VlanID 42"}
	for name, c := range map[string]struct {
		knobs   hnstest.Knobs
		refused map[netKind]string // what the error names
		warned  []netKind
	}{
		"VLAN":           {hnstest.Knobs{VlanLost: 42}, both, nil},
		"VLAN on Wi-Fi":  {hnstest.Knobs{VlanLost: 42, AdapterKind: hns.WiFi}, both, nil},
		"VPN":            {hnstest.Knobs{AdapterKind: hns.Tunnel}, map[netKind]string{overlayKind: "VPN", bridgeKind: "VPN"}, nil},
		"Wi-Fi":          {hnstest.Knobs{AdapterKind: hns.WiFi}, map[netKind]string{bridgeKind: "Wi-Fi"}, []netKind{overlayKind}},
		"team":           {hnstest.Knobs{AdapterKind: hns.Team}, nil, kinds},
		"usual":          {hnstest.Knobs{}, nil, nil},
		"team, refused":  {hnstest.Knobs{AdapterKind: hns.Team, KindRefused: true}, nil, kinds},
		"Wi-Fi, refused": {hnstest.Knobs{AdapterKind: hns.WiFi, KindRefused: true}, map[netKind]string{bridgeKind: "Wi-Fi"}, []netKind{overlayKind}},
	} {
		for _, kind := range kinds {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				names, refused := c.refused[kind]
				onWindows(t, devicesOf(kind), c.knobs, func(w *windows) {
					began := time.Now()
					p, _, err := w.prepared(time.Minute)
					if refused && (time.Since(began) > time.Second || !isUnsuitable(err, names)) {
						t.Errorf("prepare ended after %v: %v", time.Since(began), err)
					}
					if works := !refused && !c.knobs.KindRefused; works != (err == nil) || works != w.bound() || works != p.Made || refused && w.changed() != "" {
						t.Errorf("prepare: %+v, %v; bound: %t; changed\n%s", p, err, w.bound(), w.changed())
					}
				})
				onWindows(t, devicesOf(kind), c.knobs, func(w *windows) {
					var err error
					for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
						err = w.pass()
					}
					if refused && (!isUnsuitable(err, names) || w.changed() != "") {
						t.Errorf("daemon: %v; changed\n%s", err, w.changed())
					}
					if got := w.log.Count("cause="+causeAdapterKind) == 1; got != slices.Contains(c.warned, kind) {
						t.Errorf("warned: %t", got)
					}
				})
			})
		}
	}
}

// isUnsuitable reports whether an error names the adapter, and what is wrong with it.
func isUnsuitable(err error, names string) bool {
	return errors.As(err, new(*unsuitableAdapter)) && logtest.Names(err.Error(), "Ethernet", names)
}

// bound reports whether a switch is bound to an adapter.
func (w *windows) bound() bool {
	return slices.ContainsFunc(w.m.Admin().Adapters(), hns.Adapter.Virtual)
}

// An adapter that has a switch already is used as before: whoever bound it knows what the adapter is.
func TestBoundAdapterIsNotChecked(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		w.m.Turn(func(k *hnstest.Knobs) { k.VlanLost = 42 })
		if p, _, err := w.prepared(time.Minute); err != nil || p.Made {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// Where flanneld has had its network before, whatever the adapter looks like, HNS is asked after a boot or for another
// network, with a warning.
func TestAdapterThatWorked(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
			w.bring(time.Minute)
			w.m.Turn(func(k *hnstest.Knobs) { k.AdapterKind = hns.Tunnel })
			if err := w.m.Admin().DeleteNetwork(devicesOf(kind).Name); err != nil {
				t.Fatal(err)
			}
			var err error
			for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
				err = w.pass()
			}
			asked := (*hns.Error)(nil)
			if n := w.log.Count("cause=" + causeAdapterKind); n != 1 || !errors.As(err, &asked) {
				t.Errorf("warned %d times; %v", n, err)
			}
		})
	}
}

// While the adapter is refused, the ticks cause no passes, each of which would read all adapters and networks.
func TestNoPassesOnUnsuitableAdapter(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{VlanLost: 42}, func(w *windows) {
		w.passes(20 * time.Minute)
		passes := 0
		for began := time.Now(); time.Since(began) < time.Hour; {
			select {
			case <-w.Changes():
				_ = w.pass()
				passes++
			case <-time.After(time.Minute):
			}
		}
		if passes > 30 {
			t.Errorf("%d passes in an hour", passes)
		}
		w.m.Turn(func(k *hnstest.Knobs) { k.VlanLost = 0 })
		w.mends(time.Hour)
		w.check(overlayInStep)
	})
}
