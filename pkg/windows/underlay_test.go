package windows

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
)

var (
	pfx = netip.MustParsePrefix
	ip  = netip.MustParseAddr
)

// overlayOn makes the first network on an adapter, or another.
func overlayOn(t *testing.T, m *hnstest.Machine, adapter, name string) {
	t.Helper()
	c := hns.NewClient(m, hns.Timing{})
	_, err := c.CreateNetwork(t.Context(), hns.Network{Name: name, Type: hns.Overlay, Adapter: adapter, NonPersistent: true,
		Subnets: []hns.Subnet{{Prefix: pfx("10.244.5.0/24"), Gateway: ip("10.244.5.1"), VSID: 4096}}})
	if err != nil {
		t.Fatal(err)
	}
}

func snap(t *testing.T, stack hns.Stack, o underlay.Options) underlay.Snapshot {
	t.Helper()
	s, err := UnderlayOf(stack, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTakeover: whatever names the underlay before HNS takes the adapter's address away, names it afterwards.
func TestTakeover(t *testing.T) {
	m := hnstest.New()
	defer m.Close()
	m.Plug(hns.Adapter{Name: "Storage net 2", MTU: 9000, MAC: dataplane.MAC{2, 2, 2, 2, 2, 2}, Up: true,
		Addrs: []hns.Address{{Prefix: pfx("10.50.0.2/24"), Manual: true, Preferred: true}}})
	guid := m.Admin().Adapter("Ethernet").GUID
	ways := map[string]underlay.Options{
		"default route":  {},
		"name":           {Iface: []string{"Ethernet"}},
		"address":        {Iface: []string{"10.99.0.2"}},
		"GUID":           {Iface: []string{guid}},
		"regex, name":    {IfaceRegex: []*regexp.Regexp{regexp.MustCompile("^Ether")}},
		"regex, address": {IfaceRegex: []*regexp.Regexp{regexp.MustCompile(`^10\.99\.`)}},
		"can reach":      {CanReach: ip("10.99.0.77")},
		"can reach afar": {CanReach: ip("1.1.1.1")},
		"alias":          {Iface: []string{"vEthernet (Ethernet)", "Ethernet"}},
		"regex, alias":   {IfaceRegex: []*regexp.Regexp{regexp.MustCompile(`^vEthernet \(E`), regexp.MustCompile("^Ethernet$")}},
	}
	before, err := underlay.Choose(snap(t, m, underlay.Options{}), underlay.Options{}, true, false)
	if err != nil {
		t.Fatal(err)
	}
	choose := func(want underlay.Link) {
		t.Helper()
		for name, o := range ways {
			got, err := underlay.Choose(snap(t, m, o), o, true, false)
			if err != nil || !got.Equal(want) {
				t.Errorf("%s: %+v %v\nwant %+v", name, got, err, want)
			}
		}
	}
	if before.Name != "Ethernet" || before.Index != m.Admin().Adapter("Ethernet").Index || before.MAC.String() != "00:15:5d:01:02:03" || !before.Reaches(ip("10.99.0.9")) {
		t.Fatalf("%+v", before)
	}
	choose(before)

	overlayOn(t, m, "Ethernet", "flannel.4096")
	virtual := m.Admin().Adapter("vEthernet (Ethernet)")
	after := before
	if after.Index = virtual.Index; after.Index == before.Index || virtual.GUID == guid {
		t.Fatalf("%+v", virtual)
	}
	ways["GUID of the heir"] = underlay.Options{Iface: []string{virtual.GUID}}
	choose(after)

	// One that is the host's own within the pod network, and one that is somebody else's.
	m.Plug(hns.Adapter{Name: "vEthernet (cbr0_ep)", MTU: 1500, MAC: dataplane.MAC{0, 0x15, 0x5d, 9, 9, 9}, Up: true,
		Addrs: []hns.Address{{Prefix: pfx("10.244.5.2/24"), Manual: true, Preferred: true}}})
	m.Plug(hns.Adapter{Name: "vEthernet (nat)", MTU: 1500, MAC: dataplane.MAC{0, 0x15, 0x5d, 8, 8, 8}, Up: true,
		Addrs: []hns.Address{{Prefix: pfx("172.20.1.1/20"), Manual: true, Preferred: true}}})
	choose(after)
	_, err = underlay.Choose(snap(t, m, underlay.Options{}), underlay.Options{Iface: []string{"vEthernet (cbr0_ep)"}}, true, false)
	for _, want := range []string{"--iface=vEthernet (cbr0_ep): vEthernet (cbr0_ep)", "\n    Ethernet (10.99.0.2) ", "--iface=Ethernet\n",
		"\n    Storage net 2 (10.50.0.2) ", "\n    vEthernet (nat) (172.20.1.1) ", "\n    Loopback Pseudo-Interface 1 (127.0.0.1, ::1) "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// A Chooser follows the adapter, itself and behind a switch, if DHCP replaces the address that --iface names, and not if an
// administrator does, or if the replaced address was set by an administrator.
func TestReplacedByDHCP(t *testing.T) {
	m := hnstest.NewFor(t)
	admin, host := m.Admin(), "Ethernet"
	if err := admin.Configure(host, hns.Persistent{DHCP: true}); err != nil {
		t.Fatal(err)
	}
	var c underlay.Chooser
	check := func(change error, want string) {
		t.Helper()
		o := underlay.Options{Iface: []string{"10.99.0.150"}}
		d, err := c.Choose(time.Unix(1e9, 0), snap(t, m, o), o, true, false)
		if got := d.Link.V4; change != nil || err == nil != (want != "") || err == nil && (got != ip(want) || d.Link.Name != "Ethernet") {
			t.Errorf("chosen is %s %s, want %q; %v, %v", d.Link.Name, got, want, change, err)
		}
	}
	check(nil, "10.99.0.150")
	check(admin.Lease(host, pfx("10.99.0.77/24")), "10.99.0.77")
	overlayOn(t, m, "Ethernet", "flannel.4096")
	host = "vEthernet (Ethernet)"
	check(nil, "10.99.0.77")
	check(admin.Lease(host, pfx("10.99.0.78/24")), "10.99.0.78")
	check(admin.Lease(host), "")
	check(admin.Readdress(host, pfx("10.99.0.79/24")), "")
	check(admin.Lease(host, pfx("169.254.149.216/16")), "")
	check(admin.Readdress(host, pfx("10.99.0.150/24")), "10.99.0.150")
	check(admin.Lease(host, pfx("10.99.0.78/24")), "")
	for i, a := range toInterface(adapter(2, "LAN 2", 2, "10.98.0.2/24", "169.254.3.4/16", "127.0.0.1/8", "fd00::2/64")).Addrs {
		if a.DHCP != (i == 0) {
			t.Errorf("%s is by DHCP: %t", a.IP, a.DHCP)
		}
	}
}

// TestOutage checks that Watch notifies of an address that is added later.
func TestOutage(t *testing.T) {
	m := hnstest.New()
	defer m.Close()
	m.Turn(func(k *hnstest.Knobs) { k.Outage = -1 })
	changes := make(chan struct{}, 1)
	if err := watchStack(t.Context(), m, func() { reconcile.Notify(changes) }); err != nil {
		t.Fatal(err)
	}
	overlayOn(t, m, "Ethernet", "flannel.4096")
	for o, want := range map[string]string{"Ethernet": "--iface=Ethernet: Ethernet", "": "IPv4",
		"10.99.0.2": "--iface=10.99.0.2:"} {
		options := underlay.Options{}
		if o != "" {
			options.Iface = []string{o}
		}
		if _, err := underlay.Choose(snap(t, m, options), options, true, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	m.Turn(func(k *hnstest.Knobs) { k.Outage = 0 })
	for {
		select {
		case <-changes:
		case <-time.After(2 * time.Minute):
			t.Fatal("nobody told that the address is there")
		}
		if l, err := underlay.Choose(snap(t, m, underlay.Options{}), underlay.Options{}, true, false); err == nil {
			if l.V4 != ip("10.99.0.2") || l.Name != "Ethernet" {
				t.Errorf("%+v", l)
			}
			return
		}
	}
}

func TestMadeUpAddress(t *testing.T) {
	m := hnstest.New()
	defer m.Close()
	m.Turn(func(k *hnstest.Knobs) { k.APIPA = true })
	overlayOn(t, m, "Ethernet", "flannel.4096")
	for _, o := range []underlay.Options{{}, {Iface: []string{"Ethernet"}}, {Iface: []string{"169.254.149.216"}}, {IfaceRegex: []*regexp.Regexp{regexp.MustCompile(".")}},
		{CanReach: ip("169.254.1.1")}} {
		l, err := underlay.Choose(snap(t, m, o), o, true, false)
		if err == nil || !logtest.Names(err.Error(), "Ethernet (169.254.149.216)", "IPv4") {
			t.Errorf("%+v: %v %v", o, l, err)
		}
	}
	// Once somebody puts the address back, all is well.
	if err := m.AddAddress(m.Admin().Adapter("vEthernet (Ethernet)").Index, hnstest.HostAddr); err != nil {
		t.Fatal(err)
	}
	o := underlay.Options{Iface: []string{"Ethernet"}}
	if l, err := underlay.Choose(snap(t, m, o), o, true, false); err != nil || l.V4 != hnstest.HostAddr.Addr() {
		t.Error(l, err)
	}
}

// snapshotted is a machine for which a snapshot is all that is asked.
type snapshotted struct {
	hns.Stack
	adapters []hns.Adapter
	routes   []hns.Route
}

func (w snapshotted) Adapters() ([]hns.Adapter, error) { return w.adapters, nil }
func (w snapshotted) Routes() ([]hns.Route, error)     { return w.routes, nil }

func adapter(index int, name string, end byte, addrs ...string) hns.Adapter {
	a := hns.Adapter{Name: name, Index: index, MTU: 1500, MAC: dataplane.MAC{2, 0, 0, 0, 0, end}, Up: true, V4Metric: 25, V6Metric: 5}
	for _, text := range addrs {
		a.Addrs = append(a.Addrs, hns.Address{Prefix: pfx(text), Preferred: true})
	}
	return a
}

func TestWindowsRoutes(t *testing.T) {
	defaults := func(index, metric int, hop string) hns.Route {
		dst := "0.0.0.0/0"
		if ip(hop).Is6() {
			dst = "::/0"
		}
		return hns.Route{Dst: pfx(dst), NextHop: ip(hop), Index: index, Metric: metric}
	}
	w := snapshotted{adapters: []hns.Adapter{adapter(5, "Wi-Fi", 5, "192.168.1.5/24", "2001:db8::5/64", "fe80::5/64"), adapter(3, "Ethernet 2", 3, "10.1.0.5/16", "fe80::3/64")}}
	w.adapters[0].V4Metric = 70
	for _, c := range []struct {
		name   string
		routes []hns.Route
		v4, v6 bool
		want   string
	}{
		{"none", nil, true, false, "--iface"},
		{"the interface's metric counts", []hns.Route{defaults(5, 0, "192.168.1.1"), defaults(3, 10, "10.1.0.1")}, true, false, "Ethernet 2 10.1.0.5 -"},
		{"and the route's", []hns.Route{defaults(5, 0, "192.168.1.1"), defaults(3, 50, "10.1.0.1")}, true, false, "Wi-Fi 192.168.1.5 -"},
		{"equal", []hns.Route{defaults(5, 0, "192.168.1.1"), defaults(3, 45, "10.1.0.1")}, true, false, "Wi-Fi 192.168.1.5 -"},
		{"both families", []hns.Route{defaults(3, 0, "10.1.0.1"), defaults(5, 0, "192.168.1.1"), defaults(5, 256, "fe80::1")}, true, true, "Wi-Fi 192.168.1.5 2001:db8::5"},
		{"IPv6 alone", []hns.Route{defaults(5, 256, "fe80::1")}, false, true, "Wi-Fi - 2001:db8::5"},
		{"on-link", []hns.Route{defaults(5, 1, "0.0.0.0")}, true, false, "Wi-Fi 192.168.1.5 -"},
	} {
		w.routes = c.routes
		l, err := underlay.Choose(snap(t, w, underlay.Options{}), underlay.Options{}, c.v4, c.v6)
		got := strings.ReplaceAll(fmt.Sprint(l.Name, " ", l.V4, " ", l.V6), netip.Addr{}.String(), "-")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	w.routes = nil
	for _, dst := range []string{"10.1.0.0/16", "10.1.0.5/32", "10.1.255.255/32", "224.0.0.0/4", "255.255.255.255/32", "172.16.0.0/12"} {
		w.routes = append(w.routes, hns.Route{Dst: pfx(dst), NextHop: netip.IPv4Unspecified(), Index: 3})
	}
	w.routes = append(w.routes, hns.Route{Dst: pfx("10.244.7.0/24"), NextHop: ip("10.1.0.7"), Index: 3})
	o := underlay.Options{Iface: []string{"Ethernet 2"}}
	l, err := underlay.Choose(snap(t, w, o), o, true, false)
	if err != nil || len(l.OnLink) != 2 || l.OnLink[0] != pfx("10.1.0.0/16") || l.OnLink[1] != pfx("172.16.0.0/12") {
		t.Error(l.OnLink, err)
	}
}

func TestHeirs(t *testing.T) {
	unbound := func(name string, mac byte) hns.Adapter { return adapter(0, name, mac) } // to IP, so without an index
	down := adapter(4, "Ethernet 4", 4, "10.4.0.5/16")
	down.Up = false
	hyperV := adapter(9, "Host", 2, "10.2.0.5/24")
	hyperV.Description = "Hyper-V Virtual Ethernet Adapter #3"
	for name, c := range map[string]struct {
		adapters []hns.Adapter
		want     string
	}{
		"by name, with another MAC":       {[]hns.Adapter{unbound("Ethernet 2", 2), adapter(9, "vEthernet (Ethernet 2)", 7, "10.2.0.5/24")}, "Ethernet 2 9 02:00:00:00:00:07"},
		"by MAC, switch made by hand":     {[]hns.Adapter{unbound("Ethernet 2", 2), hyperV}, "Ethernet 2 9 02:00:00:00:00:02"},
		"name before MAC":                 {[]hns.Adapter{unbound("Member 1", 2), unbound("Team", 2), adapter(9, "vEthernet (Team)", 2, "10.2.0.5/24")}, "Member 1 0 02:00:00:00:00:02, Team 9 02:00:00:00:00:02"},
		"still in use":                    {[]hns.Adapter{adapter(2, "Ethernet", 2, "10.2.0.5/24"), adapter(9, "vEthernet (Ethernet)", 2, "169.254.1.1/16")}, "Ethernet 2 02:00:00:00:00:02, vEthernet (Ethernet) 9 02:00:00:00:00:02"},
		"link-local left behind":          {[]hns.Adapter{adapter(2, "Ethernet", 2, "fe80::2/64"), adapter(9, "vEthernet (Ethernet)", 2, "10.2.0.5/24")}, "Ethernet 9 02:00:00:00:00:02"},
		"no MACs":                         {[]hns.Adapter{{Name: "isatap", Index: 2}, {Name: "vEthernet (nat)", Index: 9}}, "isatap 2 00:00:00:00:00:00, vEthernet (nat) 9 00:00:00:00:00:00"},
		"two heirs, one each":             {[]hns.Adapter{unbound("A", 1), unbound("B", 2), adapter(8, "vEthernet (B)", 2, "10.2.0.5/24"), adapter(9, "vEthernet (A)", 1, "10.1.0.5/24")}, "B 8 02:00:00:00:00:02, A 9 02:00:00:00:00:01"},
		"the pod network's is no heir":    {[]hns.Adapter{unbound("cbr0_ep", 1), adapter(9, "vEthernet (cbr0_ep)", 1, "10.2.0.2/24")}, "cbr0_ep 0 02:00:00:00:00:01, vEthernet (cbr0_ep) 9 02:00:00:00:00:01"},
		"unplugged, with a fixed address": {[]hns.Adapter{down}, "Ethernet 4 4 02:00:00:00:00:04"},
	} {
		s := snap(t, snapshotted{adapters: c.adapters}, underlay.Options{})
		var got []string
		for _, in := range s.Interfaces {
			got = append(got, in.Name+" "+string(rune('0'+in.Index))+" "+in.MAC.String())
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %s\nwant %s", name, text, c.want)
		}
	}
	o := underlay.Options{Iface: []string{"Ethernet 4"}}
	if _, err := underlay.Choose(snap(t, snapshotted{adapters: []hns.Adapter{down}}, o), o, true, false); err == nil || !strings.Contains(err.Error(), "Ethernet 4") {
		t.Error(err)
	}
}
