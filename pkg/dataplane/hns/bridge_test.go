package hns

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest"
	"flannel/pkg/logtest"
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

// A pod has the address of the host's endpoint: HNS refuses the host's, or lets both have it. Either way, the pod is named.
func TestHostAddressInUse(t *testing.T) {
	for _, shared := range []bool{false, true} {
		onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{SharedAddresses: shared}, func(w *windows) {
			w.bring(time.Minute)
			if err := w.m.Admin().DeleteEndpoint("cbr0_ep"); err != nil {
				t.Fatal(err)
			}
			if _, err := w.m.CreateEndpoint(w.network.ID, hns.EncodeEndpoint(hns.Endpoint{Name: "pod", Network: w.network.ID,
				IPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.2/24")}})); err != nil {
				t.Fatal(err)
			}
			w.QueueResync()
			err := w.pass()
			if !shared && (!errors.Is(err, hns.ErrAddressInUse) || !logtest.Names(err.Error(), "10.244.1.2", "cbr0_ep", "pod")) {
				t.Errorf("got %v", err)
			}
			if !shared {
				if err := w.m.Admin().DeleteEndpoint("pod"); err != nil {
					t.Fatal(err)
				}
			}
			w.bring(time.Minute)
			if n := w.log.Count("cause=" + causeSharedAddress); (n == 1) != shared {
				t.Errorf("shared %t: logged %d times", shared, n)
			}
		})
	}
}
