package doctor

import (
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/status"
)

// Only backends that have the key Backend.MTU get the advice to set it.
func TestMTUFixes(t *testing.T) {
	const key, link = "Backend.MTU", "ip link set dev eth0 mtu"
	for _, c := range []struct{ backend, device, kind, want, not string }{
		{"vxlan", "vxlan", "vxlan", key, link},
		{"vxlan", "vxlan", PathDirect, key, link}, // DirectRouting
		{"wireguard", "wireguard", wireGuard, key, link},
		{"ipip", "ipip", "ipip", link, key},
		{"ipip", "ipip", PathDirect, link, key},
		{"udp", "tuntap", "udp", link, key},
		{"host-gw", "", PathDirect, link, key},
		{"ipsec", "", "", link, key},
		{"alloc", "", "", link, key},
	} {
		s := healthy()
		n := reportOf(&s).Node
		n.Backend, n.MTU = c.backend, 1600
		if c.device == "" {
			n.Devices = n.Devices[:1]
		}
		s.changeDevice("flannel.1", func(d *Device) { d.Type, d.MTU = c.device, 1600 })
		codes := []string{"FL106"}
		if c.kind != "" {
			p := working()
			p.Kind, p.Largest, p.Full = c.kind, 1372, PathTest{Result: Silent}
			s.Linux.Paths = Known([]Path{p})
			codes = append(codes, "FL604")
		}
		for _, code := range codes {
			if r := find(t, Examine(s), code); r.Verdict != Fail || !logtest.Names(r.Fix, c.want) || logtest.Names(r.Fix, c.not) {
				t.Errorf("%s with %s is %s, the fix is %q, want one with %q and without %q", code, c.backend, r.Verdict, r.Fix, c.want, c.not)
			}
		}
	}

	// Without the daemon's answer, the path says which backend it is.
	s, p := healthy(), working()
	s.Daemon = Known(Answer{Problem: "gone"})
	p.Kind, p.Largest, p.Full = "ipip", 1372, PathTest{Result: Silent}
	s.Linux.Paths = Known([]Path{p})
	if r := find(t, Examine(s), "FL604"); !logtest.Names(r.Fix, link+" 1422") {
		t.Errorf("without the daemon, the fix is %q", r.Fix)
	}
	s = Snapshot{OS: "windows", Daemon: Known(Answer{Report: &status.Report{Node: &status.Node{Backend: "vxlan", MTU: 1600, Underlay: status.Underlay{Name: "Ethernet 2", MTU: 1500}}}})}
	if r := find(t, Examine(s), "FL106"); r.Verdict != Fail || !strings.Contains(r.Fix, `netsh interface ipv4 set subinterface "Ethernet 2"`) {
		t.Errorf("on Windows: %s, the fix is %q", r.Verdict, r.Fix)
	}
}
