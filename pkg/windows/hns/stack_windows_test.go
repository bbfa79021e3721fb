package hns_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/windows/registry"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// openStack gives the machine a second adapter, with all that the structures can say.
func openStack(t *testing.T) (*hnstest.Machine, hns.Stack, int) {
	t.Helper()
	m := machine(t)
	index := m.Plug(hns.Adapter{Name: "Büro 2", Description: "a driver", MTU: 9000, MAC: dataplane.MAC{2, 0, 0, 0, 0, 2}, Up: true, V4Metric: 35, V6Metric: 45, DHCP: true,
		Addrs: []hns.Address{{Prefix: pfx("10.98.0.2/16"), Preferred: true}, {Prefix: pfx("2001:db8::2/64"), Manual: true, Preferred: true},
			{Prefix: pfx("2001:db8::3/64")}, {Prefix: pfx("fe80::2/64"), Tentative: true}},
		DNS: []netip.Addr{ip("10.98.0.53"), ip("2001:db8::53")}},
		hns.Route{Dst: pfx("::/0"), NextHop: ip("fe80::1"), Metric: 16})
	m.Plug(hns.Adapter{Name: "unplugged", MTU: 1500, MAC: dataplane.MAC{2, 0, 0, 0, 0, 3}})
	s, err := hns.OpenStack()
	if err != nil {
		t.Fatal(err)
	}
	return m, s, index
}

func TestAdapters(t *testing.T) {
	m, s, _ := openStack(t)
	want, err := m.Adapters()
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Adapters()
	if d := cmp.Diff(want, got, same...); d != "" || err != nil {
		t.Error(d, err)
	}
}

func TestRoutes(t *testing.T) {
	m, s, index := openStack(t)
	check := func(when string) {
		t.Helper()
		want, err := m.Routes()
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Routes()
		if d := cmp.Diff(want, got, same...); d != "" || err != nil {
			t.Errorf("%s: %s %v", when, d, err)
		}
	}
	has := func(r hns.Route) bool {
		all, err := s.Routes()
		if err != nil {
			t.Fatal(err)
		}
		for _, have := range all {
			if have == r {
				return true
			}
		}
		return false
	}
	check("at first")
	for _, r := range []hns.Route{
		{Dst: pfx("10.244.7.0/24"), NextHop: ip("10.98.0.7"), Index: index, Metric: 5, Ours: true},
		{Dst: pfx("fd00:7::/64"), NextHop: ip("2001:db8::7"), Index: index, Ours: true},
		{Dst: pfx("169.254.169.254/32"), NextHop: ip("0.0.0.0"), Index: index, Metric: 1, Ours: true},
		{Dst: pfx("fd00:8::/64"), NextHop: ip("::"), Index: index, Metric: 1, Ours: true},
	} {
		if err := s.AddRoute(r); err != nil || !has(r) {
			t.Errorf("%+v: %v", r, err)
		}
		r.Metric += 20
		if err := s.AddRoute(r); err != nil || !has(r) {
			t.Errorf("%+v again: %v", r, err)
		}
		check("with " + r.Dst.String())
		if err := errors.Join(s.DeleteRoute(r), s.DeleteRoute(r)); err != nil || has(r) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	check("at last")
	// Next hops may be left out, and host bits are dropped.
	if err := s.AddRoute(hns.Route{Dst: pfx("10.7.7.7/8"), Index: index}); err != nil || !has(hns.Route{Dst: pfx("10.0.0.0/8"), NextHop: ip("0.0.0.0"), Index: index, Ours: true}) {
		t.Error(err)
	}
	if err := s.AddRoute(hns.Route{Dst: pfx("10.0.0.0/9"), Index: 4711}); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
}

// A list that cannot be read is an error, never an empty list.
func TestUnreadableLists(t *testing.T) {
	m, s, _ := openStack(t)
	for name, list := range map[string]func() error{
		"GetAdaptersAddresses": func() error { _, err := s.Adapters(); return err },
		"GetIpForwardTable2":   func() error { _, err := s.Routes(); return err },
	} {
		m.Fail(hnstest.Fault{Func: name, Times: 1, Code: hns.InvalidParameter})
		if e, ok := errors.AsType[*hns.Error](list()); !ok || e.Call != name || e.Code != hns.InvalidParameter {
			t.Errorf("%s: %v", name, e)
		}
		if err := list(); err != nil {
			t.Errorf("%s after the fault: %v", name, err)
		}
	}
}

func TestBestRoute(t *testing.T) {
	m, s, _ := openStack(t)
	for _, dst := range []string{"10.99.0.9", "1.1.1.1", "10.98.3.4", "2001:db8::9", "2606:4700::1"} {
		r, source, err := m.BestRoute(ip(dst))
		if err != nil {
			t.Fatal(err)
		}
		got, from, err := s.BestRoute(ip(dst))
		if err != nil || got != r || from != source {
			t.Errorf("%s: %+v from %s %v, want %+v from %s", dst, got, from, err, r, source)
		}
	}
	m.Admin().DeleteRoutes(pfx("0.0.0.0/0"))
	if r, _, err := s.BestRoute(ip("1.1.1.1")); err == nil {
		t.Errorf("no way leads there, but %+v", r)
	} else {
		t.Log(err)
	}
}

func TestInterface(t *testing.T) {
	m, s, index := openStack(t)
	for _, v6 := range []bool{false, true} {
		was, err := s.Interface(index, v6)
		if err != nil || was.MTU != 9000 || was.Metric == 0 {
			t.Fatal(was, err)
		}
		for _, want := range []hns.Interface{
			{Forwarding: true, Metric: was.Metric, MTU: 9000}, {Forwarding: true, Metric: 5000, MTU: 1460}, {MTU: 9000},
		} {
			err := s.SetInterface(index, v6, want)
			got, err2 := s.Interface(index, v6)
			if err != nil || err2 != nil || got != want || m.Admin().Forwarding("Büro 2", v6) != want.Forwarding {
				t.Errorf("IPv6 %t, %+v: %+v %v %v", v6, want, got, err, err2)
			}
		}
	}
	if _, err := s.Interface(4711, false); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
}

// What is written to the registry is read back, and the DHCP client reads it, too.
func TestPersistent(t *testing.T) {
	m, s, index := openStack(t)
	if _, err := s.Persistent(index); !errors.Is(err, hns.ErrNotFound) {
		t.Fatalf("a key that does not exist: %v", err)
	}
	for _, want := range []hns.Persistent{
		{Addrs: []netip.Prefix{pfx("10.98.0.9/16"), pfx("10.97.0.9/27")}, Gateways: []hns.Gateway{{Addr: ip("10.98.0.1"), Metric: 256}}, Metric: 15, MTU: 1460},
		{DHCP: true},
	} {
		if err := s.SetPersistent(index, want); err != nil {
			t.Fatal(err)
		}
		got, err := s.Persistent(index)
		if d := cmp.Diff(want, got, same...); d != "" || err != nil {
			t.Error(d, err)
		}
		if d := cmp.Diff(want, m.Admin().Stored("Büro 2"), same...); d != "" {
			t.Error("the DHCP client read something else", d)
		}
	}
	changes := len(m.Changes())
	if err := s.SetPersistent(index, hns.Persistent{DHCP: true, MTU: 1400}); err != nil || len(m.Changes()) != changes {
		t.Errorf("the DHCP client was notified although DHCP stays on: %v", err)
	}
	// The DHCP client fails once. The next call notifies it again, although the registry is as wanted.
	static := hns.Persistent{Addrs: []netip.Prefix{pfx("10.98.0.9/16")}}
	m.Fail(hnstest.Fault{Func: "DhcpNotifyConfigChange", Times: 1, Code: hns.InvalidParameter})
	if err := s.SetPersistent(index, static); err == nil || !m.Admin().Adapter("Büro 2").DHCP {
		t.Errorf("the failure of the DHCP client is lost: %v", err)
	}
	if err := s.SetPersistent(index, static); err != nil || m.Admin().Adapter("Büro 2").DHCP {
		t.Errorf("DHCP stays on: %v", err)
	}
	// A value that cannot be written leaves the adapter to DHCP: without its addresses, it would have none after a boot.
	if err := s.SetPersistent(index, hns.Persistent{DHCP: true}); err != nil {
		t.Fatal(err)
	}
	invalid := hns.Persistent{Gateways: []hns.Gateway{{Addr: ip("fe80::1").WithZone("\x00")}}}
	if err := s.SetPersistent(index, invalid); err == nil {
		t.Error("an invalid gateway was written")
	}
	if p, err := s.Persistent(index); err != nil || !p.DHCP {
		t.Errorf("the registry has %+v, %v", p, err)
	}
	if err := s.SetPersistent(4711, hns.Persistent{}); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
}

// Without EnableDHCP, as on an adapter of which somebody has set only the MTU, the other values are returned.
func TestPersistentWithoutDHCP(t *testing.T) {
	m, s, index := openStack(t)
	if err := s.SetPersistent(index, hns.Persistent{DHCP: true, Metric: 15, MTU: 1400}); err != nil {
		t.Fatal(err)
	}
	path := `SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces\{` + m.Admin().Adapter("Büro 2").GUID + "}"
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.SET_VALUE)
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if err := key.DeleteValue("EnableDHCP"); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Persistent(index); !errors.Is(err, hns.ErrNotFound) || p.Metric != 15 || p.MTU != 1400 {
		t.Errorf("the registry has %+v, %v", p, err)
	}
}

func TestBootID(t *testing.T) {
	_, s, _ := openStack(t)
	first, err1 := s.BootID()
	second, err2 := s.BootID()
	if err1 != nil || err2 != nil || first == "" || first != second {
		t.Error(first, second, err1, err2)
	}
}

func TestDeleteAddress(t *testing.T) {
	m, s, index := openStack(t)
	for _, a := range []string{"10.98.0.2", "2001:db8::2", "10.98.0.2"} {
		if err := s.DeleteAddress(index, ip(a)); err != nil {
			t.Error(a, err)
		}
	}
	for _, a := range m.Admin().Adapter("Büro 2").Addrs {
		if a.Prefix.Addr() == ip("10.98.0.2") || a.Prefix.Addr() == ip("2001:db8::2") {
			t.Error(a, "is still there")
		}
	}
}

func TestDNSRegistration(t *testing.T) {
	m, s, index := openStack(t)
	for _, on := range []bool{true, false} {
		before := m.Admin().Adapter("Büro 2").DNS
		if err := s.SetDNSRegistration(index, on); err != nil || m.Admin().Adapter("Büro 2").Registers != on {
			t.Error(on, err)
		}
		if d := cmp.Diff(before, m.Admin().Adapter("Büro 2").DNS, same...); d != "" {
			t.Error("DNS servers changed", d)
		}
	}
}

func TestAddressAndDNS(t *testing.T) {
	m, s, index := openStack(t)
	for _, p := range []netip.Prefix{pfx("10.98.77.7/16"), pfx("fd00:77::7/64")} {
		if err := errors.Join(s.AddAddress(index, p), s.AddAddress(index, p)); err != nil {
			t.Error(err)
		}
		found := false
		for _, a := range m.Admin().Adapter("Büro 2").Addrs {
			found = found || a.Prefix == p && a.Preferred
		}
		if !found {
			t.Errorf("%s is not there", p)
		}
	}
	if err := s.SetDNS(index, []netip.Addr{ip("9.9.9.9"), ip("fd00::53"), ip("8.8.8.8")}); err != nil {
		t.Fatal(err)
	}
	got := map[netip.Addr]bool{}
	for _, a := range m.Admin().Adapter("Büro 2").DNS {
		got[a] = true
	}
	if len(got) != 3 || !got[ip("9.9.9.9")] || !got[ip("8.8.8.8")] || !got[ip("fd00::53")] {
		t.Error(got)
	}
	if err := s.SetDNS(index, []netip.Addr{ip("1.1.1.1")}); err != nil { // IPv6 stays
		t.Error(err)
	}
	if d := cmp.Diff([]netip.Addr{ip("1.1.1.1"), ip("fd00::53")}, m.Admin().Adapter("Büro 2").DNS, same...); d != "" {
		t.Error(d)
	}
	if err := s.AddAddress(4711, pfx("10.1.1.1/8")); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	m, s, index := openStack(t)
	told := make(chan struct{}, 1000)
	stop, err := s.Watch(func() { told <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	quiet := func() {
		for {
			select {
			case <-told:
			case <-time.After(300 * time.Millisecond):
				return
			}
		}
	}
	for name, act := range map[string]func() error{
		"route": func() error {
			return m.Admin().AddRoute(hns.Route{Dst: pfx("10.9.0.0/16"), NextHop: ip("10.98.0.9"), Index: index})
		},
		"address":    func() error { return m.Admin().Readdress("Büro 2", pfx("10.98.0.3/16")) },
		"forwarding": func() error { return m.Admin().SetForwarding("Büro 2", false, true) },
	} {
		quiet()
		if err := act(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		case <-time.After(2 * time.Minute):
			t.Errorf("not told of a change of %s", name)
		}
	}
	stop()
	quiet() // of before
	if err := m.Admin().Readdress("Büro 2", pfx("10.98.0.4/16")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-told:
		t.Error("told after the end")
	case <-time.After(500 * time.Millisecond):
	}
}
