package windows

import (
	"cmp"
	"errors"
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// triesAnHour is the most that HNS is asked for one change in an hour: after 5 s, 10 s and so on, and then every 10 min.
const triesAnHour = 15

// calls returns how many calls of a function the log has.
func (w *windows) calls(function string) (n int) {
	for _, c := range w.m.Log() {
		if c.Func == function {
			n++
		}
	}
	return n
}

// hour passes every four seconds for an hour, so that nothing but the driver spaces the tries. It returns the seconds in which
// no adapter had the host's address.
func (w *windows) hour() (without int) {
	w.t.Helper()
	w.m.ForgetLog()
	for range 900 {
		_ = w.pass()
		time.Sleep(4 * time.Second)
		if _, found := hostconfig.AdapterWith(w.m.Admin().Adapters(), hnstest.HostAddr.Addr()); !found {
			without += 4
		}
	}
	return without
}

// HNS makes a switch for the network, refuses the network, and removes the switch: each try takes the host's addresses for
// ten seconds.
func TestCreateFailsAfterBind(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, CreateFailsAfterBind: hns.InvalidParameter}, func(w *windows) {
				without := w.hour()
				created := w.calls("HcnCreateNetwork")
				if created < 5 || created > triesAnHour || without > 16*created {
					t.Errorf("HNS was asked %d times in an hour, in which the host had no address for %d s", created, without)
				}
				if lines := w.log.Count("level=WARN") + w.log.Count("cause="+causeNetworkMade); lines != 0 { // none for a try
					t.Errorf("logged\n%s", w.log)
				}
				w.m.Turn(func(k *hnstest.Knobs) { k.CreateFailsAfterBind = 0 })
				w.bring(20 * time.Minute)
				w.mends(time.Minute)
			})
		})
	}
}

// Whatever HNS refuses for an hour, it is asked seldom, the driver logs no try, and the network is as
// it should be when HNS accepts.
func TestRefusedForAnHour(t *testing.T) {
	for name, test := range map[string]struct {
		kind     netKind
		function string
		match    string
		code     hns.Code // 0: a refusal
		change   func(*windows)
	}{
		"create network":  {kind: overlayKind, function: "HcnCreateNetwork"},
		"HNS stops":       {kind: overlayKind, function: "HcnCreateNetwork", code: hns.RPCCallFailed},
		"create endpoint": {kind: bridgeKind, function: "HcnCreateEndpoint"},
		"attach endpoint": {kind: bridgeKind, function: "HNSCall", match: "attach"},
		"delete network": {kind: overlayKind, function: "HcnDeleteNetwork", change: func(w *windows) {
			w.devices = []dataplane.Device{overlayDevice(netip.MustParsePrefix("10.244.7.0/24"))}
		}},
		"delete endpoint": {kind: bridgeKind, function: "HcnDeleteEndpoint", change: func(w *windows) {
			other := hns.Endpoint{Name: hns.HostEndpoint("cbr0"), Network: w.network.ID, IPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.9/24")}}
			if err := w.client.DeleteEndpoint(w.t.Context(), w.Driver.endpoint); err != nil {
				w.t.Fatal(err)
			}
			if _, err := w.client.CreateEndpoint(w.t.Context(), other); err != nil {
				w.t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onWindows(t, devicesOf(test.kind), hnstest.Knobs{}, func(w *windows) {
				if test.change != nil {
					w.bring(time.Minute)
					w.mends(time.Minute)
					test.change(w)
					w.restart()
				}
				w.m.Fail(hnstest.Fault{Func: test.function, Match: test.match, Code: cmp.Or(test.code, hns.InvalidParameter)})
				warned := w.log.Count("level=WARN")
				w.hour()
				if n := w.calls(test.function); n < 5 || n > triesAnHour {
					t.Errorf("%s was called %d times in an hour", test.function, n)
				}
				if n := w.log.Count("level=WARN") - warned; n > 0 || w.log.Count("cause=settings-complete") != 0 {
					t.Errorf("logged %d warnings:\n%s", n, w.log)
				}
				w.m.Heal()
				w.bring(20 * time.Minute)
				w.mends(time.Minute)
			})
		})
	}
}

// After HNS was restarted, and when a change is no longer needed, earlier refusals delay nothing.
func TestRefusalIsForgotten(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		refuse := func(function string) {
			w.m.Fail(hnstest.Fault{Func: function, Code: hns.InvalidParameter})
			w.passes(20 * time.Minute)
			w.m.Heal()
		}
		refuse("HcnCreateNetwork")
		w.m.Turn(func(k *hnstest.Knobs) { k.Down = true })
		w.passes(5 * time.Second)
		w.m.Turn(func(k *hnstest.Knobs) { k.Down = false })
		w.bring(30 * time.Second)
		w.mends(time.Minute)

		other := []dataplane.Device{overlayDevice(netip.MustParsePrefix("10.244.7.0/24"))}
		w.devices = other
		refuse("HcnDeleteNetwork")
		w.devices = []dataplane.Device{overlayDevice(ownSubnet)}
		w.bring(30 * time.Second)
		w.devices = other
		w.bring(30 * time.Second)
	})
}

// While HNS refuses, nothing wakes the loop before the next try.
func TestNoPassesWhileRefused(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "HcnCreateNetwork", Code: hns.InvalidParameter})
		w.passes(20 * time.Minute)
		w.m.ForgetLog()
		passes := 0
		for began := time.Now(); time.Since(began) < time.Hour; {
			select {
			case <-w.Changes():
				_ = w.pass()
				passes++
			case <-time.After(time.Minute):
			}
		}
		if n := w.calls("HcnCreateNetwork"); n < 5 || n > 7 || passes > 4*n {
			t.Errorf("%d passes in an hour, in which HNS was asked %d times for the network", passes, n)
		}
	})
}

// While only a person can mend something, the driver does not wake the loop either, which retries after pauses of its own:
// each pass would list all networks of HNS.
func TestNoPassesWhileBroken(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		if err := w.m.Admin().CreateNetwork(`{"Name":"flannel.4096","Type":"NAT","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"172.20.0.0/24"}]}],"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
			t.Fatal(err)
		}
		w.passes(10 * time.Second)
		passes := 0
		for began := time.Now(); time.Since(began) < time.Minute; {
			select {
			case <-w.Changes():
				if err := w.pass(); err == nil || errors.As(err, new(*dataplane.WaitError)) {
					t.Fatalf("got %v", err)
				}
				passes++
			case <-time.After(10 * time.Second):
			}
		}
		if passes > 2 {
			t.Errorf("%d passes in a minute", passes)
		}
		if err := w.m.Admin().DeleteNetwork("flannel.4096"); err != nil {
			t.Fatal(err)
		}
		w.mends(time.Minute) // HNS notifies of that
		w.check(overlayInStep)
	})
}

// HNS cannot make a network soon after it deleted one: it is not asked before.
func TestDeleteSettles(t *testing.T) {
	for _, kind := range kinds {
		onWindows(t, devicesOf(kind), hnstest.Knobs{DeleteSettles: 8 * time.Second}, func(w *windows) {
			w.bring(time.Minute)
			w.mends(time.Minute)
			next := netip.MustParsePrefix("10.244.7.0/24")
			w.devices = []dataplane.Device{overlayDevice(next)}
			if kind == bridgeKind {
				w.devices = []dataplane.Device{bridgeDevice(next)}
			}
			w.m.ForgetLog()
			w.bring(2 * time.Minute)
			if n := w.calls("HcnCreateNetwork"); n != 1 {
				t.Errorf("%s: HNS was asked %d times for the network: %q", kind, n, w.problems)
			}
		})
	}
}

// The same holds for a network that cleanup deleted, and one that prepare creates afterwards.
func TestPrepareAfterCleanup(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{DeleteSettles: 8 * time.Second}, func(w *windows) {
		w.bring(time.Minute)
		w.mends(time.Minute)
		w.restart()
		if _, err := w.cleanup(w.t.Context(), []netip.Prefix{winNetwork}, false); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.m.ForgetLog()
		if _, _, err := w.prepared(time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := w.calls("HcnCreateNetwork"); n != 1 {
			t.Errorf("HNS was asked %d times for the network", n)
		}
	})
}
