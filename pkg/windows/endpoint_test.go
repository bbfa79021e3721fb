package windows

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/api"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// HNS refuses to attach an endpoint that was created by the newer API, a new one and that of an earlier run: it is created
// once by the older API. If it refuses that one, too, it is not created again and again.
func TestV2EndpointNotAttachable(t *testing.T) {
	for _, test := range []struct {
		refusal hns.Code
		subnets []netip.Prefix
	}{
		{api.WrongDisk, []netip.Prefix{ownSubnet}},
		{api.WrongDisk, []netip.Prefix{ownSubnet, netip.MustParsePrefix("fd00:244:1::/64")}},
		{hns.RequestUnsupported, []netip.Prefix{ownSubnet}},
	} {
		onWindows(t, bridgeDevice(test.subnets...), hnstest.Knobs{V2EndpointNotAttachable: test.refusal}, func(w *windows) {
			w.bring(time.Minute)
			inside := w.m.Admin().Adapter("vEthernet (cbr0_ep)")
			if n := w.log.Count("cause=" + causeEndpointV1); n != 1 || len(w.endpoints()) != 1 || len(inside.Addrs) != len(test.subnets) {
				t.Errorf("logged %d times, endpoints %q, the host has %v", n, w.endpoints(), inside.Addrs)
			}
			w.restart()
			w.bring(time.Minute)
			if n := w.log.Count("cause=" + causeEndpointV1); n != 1 {
				t.Errorf("after a restart, logged %d times", n)
			}
		})
	}
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.m.Fail(hnstest.Fault{Func: "HNSCall", Match: "/attach", Code: api.WrongDisk})
		w.hour()
		creates := 0
		for _, c := range w.m.Log() {
			if c.Func == "HcnCreateEndpoint" || c.Func == "HNSCall" && len(c.Args) > 1 && c.Args[0] == "POST" && c.Args[1] == "/endpoints/" {
				creates++
			}
		}
		if creates != 2 {
			t.Errorf("%d endpoints were created, want one by each API", creates)
		}
		w.m.Heal()
		w.bring(time.Hour)
		w.check(bridgeInStep)
	})
}

// HNS refuses to attach what the newer API creates, and to create by the older one, also with a code that HNS has while it does
// not run (0x803b0022): the newer API is used again, and endpoints are not made and deleted every few seconds. Without an answer,
// or with an address that is in use, the older API remains the way.
func TestNeitherAPI(t *testing.T) {
	const older = "POST\n/endpoints/\n"
	for _, code := range []hns.Code{hns.InvalidParameter, 0x803b0022} {
		onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{V2EndpointNotAttachable: api.WrongDisk}, func(w *windows) {
			w.m.Fail(hnstest.Fault{Func: "HNSCall", Match: older, Code: code})
			w.hour()
			if n := w.calls("HcnCreateEndpoint"); n < 5 || n > triesAnHour {
				t.Errorf("%#x: %d endpoints were made in an hour", code, n)
			}
			w.m.Heal()
			w.bring(time.Hour)
			w.check(bridgeInStep)
		})
	}
	for _, fault := range []hnstest.Fault{{Delay: 20 * time.Second, Code: hns.InvalidParameter}, {Code: hns.AddressInUse}} {
		onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{V2EndpointNotAttachable: api.WrongDisk}, func(w *windows) {
			fault.Func, fault.Match, fault.Times = "HNSCall", older, 1
			w.m.Fail(fault)
			w.bring(5 * time.Minute)
			if n := w.calls("HcnCreateEndpoint"); n != 1 {
				t.Errorf("after %+v, the newer API made %d endpoints", fault, n)
			}
		})
	}
}

// HNS reports the addresses of an earlier run's host endpoint in another order: it is used. One with a further address is not.
func TestHostEndpointAddresses(t *testing.T) {
	for _, test := range []struct {
		addrs []string
		used  bool
	}{{[]string{"fd05:0:0:1::2/64", "10.244.1.2/24"}, true}, {[]string{"10.244.1.2/24", "fd05:0:0:1::2/64", "10.244.1.9/24"}, false}} {
		onWindows(t, bridgeDevice(ownSubnet, netip.MustParsePrefix("fd05:0:0:1::/64")), hnstest.Knobs{}, func(w *windows) {
			w.bring(time.Minute)
			if err := w.m.Admin().DeleteEndpoint("cbr0_ep"); err != nil {
				t.Fatal(err)
			}
			former := hns.Endpoint{Name: "cbr0_ep", Network: w.network.ID}
			for _, a := range test.addrs {
				former.IPs = append(former.IPs, netip.MustParsePrefix(a))
			}
			made, err := w.client.CreateEndpoint(w.t.Context(), former)
			if err != nil {
				t.Fatal(err)
			}
			w.restart()
			w.bring(time.Minute)
			if used := w.Driver.endpoint == made.ID; used != test.used || len(w.endpoints()) != 1 {
				t.Errorf("%v: used %t; %q", test.addrs, used, w.endpoints())
			}
		})
	}
}

// A former endpoint of the host that HNS refuses to delete does not keep the right one, which HNS lists after it.
func TestFormerHostEndpointStays(t *testing.T) {
	onWindows(t, bridgeDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.bring(time.Minute)
		if err := w.m.Admin().DeleteEndpoint("cbr0_ep"); err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"10.244.1.9/24", "10.244.1.2/24"} {
			if _, err := w.client.CreateEndpoint(w.t.Context(), hns.Endpoint{Name: "cbr0_ep", Network: w.network.ID, IPs: []netip.Prefix{netip.MustParsePrefix(a)}}); err != nil {
				t.Fatal(err)
			}
		}
		w.restart()
		w.m.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Code: hns.InvalidParameter})
		w.bring(time.Minute)
		if n := w.log.Count("cause=" + causeEndpointStays); n != 1 || len(w.endpoints()) != 2 {
			t.Errorf("logged %d times, endpoints %q", n, w.endpoints())
		}
		w.m.Heal()
		w.m.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Delay: 20 * time.Second, Code: hns.InvalidParameter, Times: 1})
		time.Sleep(time.Minute)
		w.QueueResync()
		if wait := (*dataplane.WaitError)(nil); !errors.As(w.pass(), &wait) || wait.Cause() != causeHNSSilent {
			t.Errorf("HNS does not answer, and the pass returned %v", wait)
		}
		time.Sleep(time.Minute)
		w.bring(5 * time.Minute)
		if got := w.endpoints(); len(got) != 1 {
			t.Errorf("endpoints %q remain", got)
		}
	})
}
