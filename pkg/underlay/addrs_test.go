package underlay

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddrs(t *testing.T) {
	s := host()
	s.Interfaces = append(s.Interfaces, dev(9, "kube-ipvs0", "10.96.0.1/32", "192.168.1.5/32"), dev(10, "docker0", "172.17.0.1/16", "2001:db8:9::1/64 tentative"))
	s.Interfaces[len(s.Interfaces)-2].Up = false
	got := s.Addrs()
	for _, want := range []string{"192.168.1.5", "192.168.1.6", "2001:db8:1::5", "10.1.0.5", "fd00:7::7", "10.2.0.5", "10.5.1.0", "10.96.0.1", "172.17.0.1"} {
		if !slices.Contains(got, ip(want)) {
			t.Errorf("%s is not among %v", want, got)
		}
	}
	for _, other := range []string{"127.0.0.1", "::1", "fe80::5", "169.254.7.7", "2001:db8:9::1", "192.168.1.7"} {
		if slices.Contains(got, ip(other)) {
			t.Errorf("%s is among %v", other, got)
		}
	}
	if all := slices.Compact(slices.Clone(got)); len(all) != len(got) || !slices.IsSortedFunc(got, netip.Addr.Compare) {
		t.Errorf("not in order, or an address is there twice: %v", got)
	}
}
