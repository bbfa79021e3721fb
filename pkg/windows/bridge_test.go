package windows

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// The host's endpoint never becomes a way out of the host, whatever HNS adds, and whatever somebody does later.
func TestHostEndpointStaysLocal(t *testing.T) {
	for _, adds := range []bool{false, true} {
		onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{HostDefaultRoute: adds}, func(w *windows) {
			isLocal := func(when string) {
				t.Helper()
				a := w.m.Admin().Adapter("vEthernet (cbr0_ep)")
				for _, r := range w.m.Admin().Routes() {
					if r.Index == a.Index && r.Dst.Bits() == 0 {
						t.Errorf("%s: %+v", when, r)
					}
				}
				if a.V4Metric != bridgeMetric || a.V6Metric != bridgeMetric || a.Registers {
					t.Errorf("%s: %+v", when, a)
				}
			}
			w.bring(time.Minute)
			isLocal("at first")
			w.check(bridgeInStep)
			index := w.m.Admin().Adapter("vEthernet (cbr0_ep)").Index
			for _, r := range []hns.Route{
				{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: netip.MustParseAddr("10.244.1.1"), Index: index},
				{Dst: netip.MustParsePrefix("::/0"), NextHop: netip.MustParseAddr("fe80::1"), Index: index},
			} {
				if err := w.m.Admin().AddRoute(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(w.m.SetDNSRegistration(index, true), w.m.SetInterface(index, false, hns.Interface{Forwarding: true, MTU: 1500})); err != nil {
				t.Fatal(err)
			}
			w.mends(mended)
			isLocal("after somebody's changes")
			w.check(bridgeInStep)
			if w.m.Admin().Adapter("vEthernet (Ethernet)").V4Metric != hnstest.UsualMetric || !w.m.Admin().Adapter("vEthernet (Ethernet)").Registers {
				t.Error("the host's own adapter was changed")
			}
		})
	}
}

// HNS learns the host's address only once the endpoint is attached, so attaching must not wait for it. prepare attaches none.
func TestManagementIPAfterEndpoint(t *testing.T) {
	knobs := hnstest.Knobs{Outage: 10 * time.Second, ManagementIPAfterEndpoint: true}
	onWindows(t, bridgeDevice(ownSubnet), knobs, func(w *windows) {
		w.bring(2 * time.Minute)
		w.mends(time.Minute)
		w.check(bridgeInStep)
	})
	onWindows(t, bridgeDevice(ownSubnet), knobs, func(w *windows) {
		if _, _, err := w.prepared(2 * time.Minute); err != nil {
			t.Fatal(err)
		}
		w.bring(2 * time.Minute)
		w.mends(time.Minute)
	})
}

// That Windows refuses metric and registration is logged, and does not keep the node from being ready.
func TestHostEndpointSettingsRefused(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "SetInterfaceDnsSettings", Code: hns.NoSuchFunction})
		w.m.Fail(hnstest.Fault{Func: "SetIpInterfaceEntry", Match: "metric=", Code: hns.InvalidParameter})
		w.bring(time.Minute)
		w.mends(time.Minute)
		for _, cause := range []string{causeDNSRegistration, causeBridgeMetric} {
			if n := w.log.Count("cause=" + cause); n == 0 {
				t.Errorf("%s was not logged:\n%s", cause, w.log)
			}
		}
	})
}

// A pod has the address of the host's endpoint: HNS refuses the host's, or lets both have it. Either way, a warning names
// the pod. That the endpoints cannot be listed for that keeps the node from nothing.
func TestHostAddressInUse(t *testing.T) {
	for _, shared := range []bool{false, true} {
		onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{SharedAddresses: shared}, func(w *windows) {
			w.bring(time.Minute)
			synctest.Wait() // for the comparison of addresses
			if err := w.m.Admin().DeleteEndpoint("cbr0_ep"); err != nil {
				t.Fatal(err)
			}
			if _, err := w.m.CreateEndpoint(w.network.ID, hns.EncodeEndpoint(hns.Endpoint{Name: "pod", Network: w.network.ID,
				IPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.2/24")}})); err != nil {
				t.Fatal(err)
			}
			w.m.Fail(hnstest.Fault{Func: "HcnEnumerateEndpoints", Match: "VirtualNetwork", Code: hns.InvalidParameter})
			w.QueueResync()
			if shared {
				w.bring(time.Minute)
			} else if err := w.pass(); !errors.Is(err, hns.ErrAddressInUse) || !logtest.Names(err.Error(), "10.244.1.2", "cbr0_ep") {
				t.Errorf("got %v", err)
			}
			w.m.Heal()
			time.Sleep(2 * w.pace.Poll)
			synctest.Wait()
			if n := w.log.Count("cause="+causeSharedAddress, "endpoint=pod"); n != 1 {
				t.Errorf("shared %t: logged %d times", shared, n)
			}
			if err := w.m.Admin().DeleteEndpoint("pod"); err != nil {
				t.Fatal(err)
			}
			w.QueueResync()
			w.bring(time.Minute)
		})
	}
}

// kube-proxy has an endpoint for each backend of a Service. A pass does not read them, unless HNS ignores the name in a
// query; then one does, and no further one.
func TestThousandsOfEndpoints(t *testing.T) {
	for name, knobs := range map[string]hnstest.Knobs{"conditions": {}, "only names": {OnlyNames: true}, "no conditions": {NoConditions: true}} {
		t.Run(name, func(t *testing.T) {
			many := uint64(10_000)
			if knobs.NoConditions {
				many = 500
			}
			knobs.EndpointCost = 1300 * time.Millisecond
			onWindows(t, bridgeDevice(ownSubnet), knobs, func(w *windows) {
				w.bring(time.Minute)
				if err := w.m.Admin().AddRemoteEndpoints("cbr0", int(many)); err != nil {
					t.Fatal(err)
				}
				w.opts.Pace = pace{Poll: time.Hour, Wait: time.Hour}
				w.restart()
				for i := range 3 {
					limit := uint64(10)
					if i == 0 && knobs.NoConditions {
						limit += many
					}
					w.QueueResync()
					before, _ := w.client.Counts()
					began := time.Now()
					if err := w.pass(); err != nil {
						t.Fatal(err)
					}
					after, _ := w.client.Counts()
					t.Logf("pass %d: %d calls of HNS, %s at %s for each endpoint", i, after-before, time.Since(began), knobs.EndpointCost)
					if after-before > limit {
						t.Errorf("pass %d made %d calls of HNS", i, after-before)
					}
				}
			})
		})
	}
}

// What the network works without is tried again although nothing else changes, after pauses: to delete a former endpoint of
// the host, and to set metric and registration of its interface.
func TestLeftIsRetried(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		faults := map[string]hnstest.Fault{
			"HcnDeleteEndpoint":       {Code: hns.InvalidParameter},
			"SetInterfaceDnsSettings": {Code: hns.InvalidParameter},
			"SetIpInterfaceEntry":     {Match: "metric=", Code: hns.InvalidParameter},
		}
		for name, f := range faults {
			f.Func = name
			w.m.Fail(f)
		}
		w.bring(time.Minute)
		if _, err := w.client.CreateEndpoint(w.t.Context(), hns.Endpoint{Name: "cbr0_ep", Network: w.network.ID, IPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.9/24")}}); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.bring(time.Minute)
		w.m.ForgetLog()
		w.mends(time.Hour)
		for name := range faults {
			tries := 0
			for _, c := range w.m.Log() {
				if c.Func == name {
					tries++
				}
			}
			if tries < 5 || tries > 30 { // two families have a metric
				t.Errorf("%s was called %d times in an hour", name, tries)
			}
		}
		w.m.Heal()
		w.mends(15 * time.Minute)
		if a, left := w.m.Admin().Adapter("vEthernet (cbr0_ep)"), w.endpoints(); len(left) != 1 || a.V4Metric != bridgeMetric || a.V6Metric != bridgeMetric || a.Registers {
			t.Errorf("endpoints %q remain, the host has %+v", left, a)
		}
	})
}

// What is left for a later pass costs the passes before nothing, and is logged once until it has succeeded.
func TestLeftIsLoggedAgain(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		const inside = "vEthernet (cbr0_ep)"
		for episode := range 2 {
			if episode > 0 {
				if err := w.m.SetDNSRegistration(w.m.Admin().Adapter(inside).Index, true); err != nil {
					t.Fatal(err)
				}
			}
			w.m.Fail(hnstest.Fault{Func: "SetInterfaceDnsSettings", Code: hns.InvalidParameter})
			w.bring(time.Minute)
			w.mends(time.Minute)
			w.m.ForgetLog()
			const passes = 300
			for range passes {
				time.Sleep(time.Second)
				_ = w.pass()
			}
			if n := w.calls("GetAdaptersAddresses"); n > passes/10 {
				t.Errorf("adapters were listed %d times in %d passes", n, passes)
			}
			if n := w.log.Count("cause=" + causeDNSRegistration); n != episode+1 {
				t.Errorf("episode %d: logged %d times", episode, n)
			}
			w.m.Heal()
			w.mends(15 * time.Minute)
			if w.m.Admin().Adapter(inside).Registers {
				t.Fatal("the bridge registers its address")
			}
		}
	})
}

// A default route that Windows refuses to remove keeps neither the other one nor the metric, by which no route prefers it.
func TestDefaultRouteStays(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		index := w.m.Admin().Adapter("vEthernet (cbr0_ep)").Index
		w.m.Fail(hnstest.Fault{Func: "DeleteIpForwardEntry2", Match: "0.0.0.0/0 via 10.244.1.1", Code: hns.InvalidParameter})
		for _, r := range []hns.Route{
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: netip.MustParseAddr("10.244.1.1"), Index: index},
			{Dst: netip.MustParsePrefix("::/0"), NextHop: netip.MustParseAddr("fe80::1"), Index: index},
		} {
			if err := w.m.Admin().AddRoute(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.m.SetInterface(index, false, hns.Interface{Forwarding: true, MTU: 1500}); err != nil {
			t.Fatal(err)
		}
		w.QueueResync()
		if err := w.pass(); err == nil || !logtest.Names(err.Error(), "vEthernet (cbr0_ep)") {
			t.Errorf("got %v", err)
		}
		var left []string
		for _, r := range w.m.Admin().Routes() {
			if r.Index == index {
				left = append(left, r.Dst.String())
			}
		}
		if a := w.m.Admin().Adapter("vEthernet (cbr0_ep)"); !slices.Equal(left, []string{"0.0.0.0/0"}) || a.V4Metric != bridgeMetric {
			t.Errorf("routes %q remain, with the metric %d", left, a.V4Metric)
		}
	})
}

// The host's endpoint lacks IPv6: that is a warning, and IPv4 is forwarded.
func TestForwardsOtherFamily(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet, netip.MustParsePrefix("fd05:0:0:1::/64")), hnstest.Knobs{}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "GetIpInterfaceEntry", Match: "IPv6 on vEthernet (cbr0_ep)", Code: hns.ElementNotFound})
		w.bring(time.Minute)
		w.mends(time.Minute)
		for _, name := range []string{"vEthernet (cbr0_ep)", "vEthernet (Ethernet)"} {
			if !w.m.Admin().Forwarding(name, false) {
				t.Errorf("%s does not forward IPv4", name)
			}
		}
		if n := w.log.Count("level=WARN", "cause="+causeNoDualStack); n != 1 || w.m.Admin().Forwarding("vEthernet (cbr0_ep)", true) || !w.m.Admin().Forwarding("vEthernet (Ethernet)", true) {
			t.Errorf("warned %d times\n%s", n, w.log)
		}
	})
}

// While the addresses of thousands of endpoints are compared, HNS does not answer one request in time, never answers about a
// second endpoint, and refuses a third: each other one is read once, and the one with the host's address is named.
func TestCompareAddressesContinues(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{SharedAddresses: true}, func(w *windows) {
		w.bring(time.Minute)
		synctest.Wait() // for the comparison of addresses
		if err := w.m.Admin().AddRemoteEndpoints("cbr0", 1000); err != nil {
			t.Fatal(err)
		}
		w.endpoint("cbr0", "pod", "", 2)
		ids, err := w.m.EndpointIDs(w.network.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.m.Fail(hnstest.Fault{Func: "HcnOpenEndpoint", Match: ids[200], Delay: time.Minute})
		w.m.Fail(hnstest.Fault{Func: "HcnOpenEndpoint", Match: ids[500], Code: hns.InvalidParameter})
		w.m.Fail(hnstest.Fault{Func: "HcnOpenEndpoint", Match: ids[800], Times: 1, Delay: time.Minute})
		w.m.ForgetLog()
		w.bring(time.Minute)
		time.Sleep(time.Hour)
		reads := map[string]int{}
		for _, c := range w.m.Log() {
			if c.Func == "HcnOpenEndpoint" {
				reads[strings.ToLower(c.Args[0])]++
			}
		}
		for i, id := range ids {
			most := map[int]int{200: 10, 800: 2}[i] // the pauses after the silent one become longer
			if n := reads[strings.ToLower(id)]; n < 1 || n > max(1, most) && id != w.Driver.endpoint {
				t.Errorf("endpoint %d was read %d times, want at most %d", i, n, max(1, most))
			}
		}
		if n := w.log.Count("cause="+causeSharedAddress, "endpoint=pod"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// Pods have the address of the host's endpoint on one network, and on the next one: both are named.
func TestAddressInUseOnNextNetwork(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		for _, subnet := range []string{"10.244.1.0/24", "10.244.7.0/24"} {
			prefix, taken := netip.MustParsePrefix(subnet), false
			w.devices = []dataplane.Device{bridgeDevice(prefix)}
			for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(500 * time.Millisecond) {
				_ = w.pass()
				for _, document := range w.m.Admin().Networks() {
					if n := network(t, document); !taken && n.Subnets[0].Prefix == prefix {
						taken = true
						pod := hns.Endpoint{Name: "pod on " + subnet, Network: n.ID, IPs: []netip.Prefix{netip.PrefixFrom(prefix.Addr().Next().Next(), 24)}}
						if _, err := w.m.CreateEndpoint(n.ID, hns.EncodeEndpoint(pod)); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			synctest.Wait()
			if n := w.log.Count("cause="+causeSharedAddress, "endpoint=pod on "+subnet); n != 1 {
				t.Errorf("%s: logged %d times", subnet, n)
			}
		}
	})
}
