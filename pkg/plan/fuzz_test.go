package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// fuzzLease makes a lease of eight bytes, with values that are near to each other and to what is forbidden.
func fuzzLease(i int, b []byte) *subnet.Lease {
	l := &subnet.Lease{Name: fmt.Sprintf("lease %03d", i), Backend: []string{"vxlan", "vxlan", "vxlan", "", "host-gw", "\xff"}[b[0]%6], Since: int64(b[1] % 4)}
	data := json.RawMessage(fmt.Sprintf(`{"VNI":%d,"VtepMAC":"0%d:00:00:00:00:%02x"}`, b[2]/128+1, b[2]/32%4, b[3]%8))
	ips := []string{"192.168.100.2", "192.168.100.1", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.5.9.9", "::ffff:192.168.100.2", "0.0.0.0"}
	if b[4]&1 == 0 {
		l.V4 = subnet.Endpoint{PublicIP: netip.MustParseAddr(ips[b[2]%32/4]), Data: data}
		l.V4.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5 + b[4]>>7, b[5] % 8, b[6]}), int(b[7])%33)
	}
	if b[4]&2 == 0 {
		l.V6 = subnet.Endpoint{PublicIP: netip.MustParseAddr("fd00:100::2"), Data: data}
		six := netip.MustParseAddr("2001:cafe:42::").As16()
		six[6], six[7], six[8] = b[4]>>6, b[5]%8, b[6]
		l.V6.Subnet = netip.PrefixFrom(netip.AddrFrom16(six), int(b[7])%129)
	}
	if b[1]&128 == 0 { // most have no host bits
		l.V4.Subnet, l.V6.Subnet = l.V4.Subnet.Masked(), l.V6.Subnet.Masked()
	}
	if b[1]&96 == 96 { // a MAC address that is derived, from its own subnet or another's
		of := &subnet.Lease{V4: subnet.Endpoint{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, b[3] % 8, 0}), 24)},
			V6: subnet.Endpoint{Subnet: netip.MustParsePrefix(fmt.Sprintf("2001:cafe:42:%x::/64", b[3]%8))}}
		if b[1]&16 != 0 {
			of = l
		}
		derive(l, of)
	}
	return l
}

// FuzzLeases: whatever the others publish, and in whatever order it comes and goes, the paths of those who are in are
// parts of the network that nobody shares, and everybody who is out is named, with a short reason.
func FuzzLeases(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x02\x00\x18\x00\x01\x00\x01\x01\x03\x00\x18\x00\x01\x00\x02\x02\x03\x80\x19"), uint64(1))
	f.Add([]byte("\x00\x00\x00\x01\x01\x02\x00\x18\x00\x01\x00\x01\x01\x03\x00\x18\x00\x01\x04\x03\x01\x02\x00\x16"), uint64(6))
	f.Add([]byte("\x00\x60\x00\x03\x02\x05\x00\x18\x00\x61\x00\x03\x02\x03\x00\x18\x00\x72\x00\x02\x02\x02\x00\x18"), uint64(2))
	f.Fuzz(func(t *testing.T, raw []byte, mask uint64) {
		var all []*subnet.Lease
		for i := 0; i+8 <= len(raw) && i < 8*64; i += 8 {
			all = append(all, fuzzLease(i/8, raw[i:]))
		}
		slices.SortStableFunc(all, subnet.Compare)
		p := newPlan(t, true)
		p.Paths(all)
		var some []*subnet.Lease
		for i, l := range all {
			if mask>>(i%64)&1 == 0 {
				some = append(some, l)
			}
		}
		paths, rejects := p.Paths(some)
		fresh, same := newPlan(t, true).Paths(some)
		if dsts(paths) != dsts(fresh) || !slices.Equal(rejects, same) {
			t.Errorf("%s, %v; fresh %s, %v", dsts(paths), rejects, dsts(fresh), same)
		}
		out := map[string]bool{}
		for _, r := range rejects {
			if out[r.Name] = true; len(r.Reason) == 0 || len(r.Reason) > 400 {
				t.Errorf("the reason %q", r.Reason)
			}
		}
		for i, a := range paths {
			network := p.cfg.V4
			if a.Dst.Addr().Is6() {
				network = p.cfg.V6
			}
			if !network.Holds(a.Dst) || a.Dst != a.Dst.Masked() || !unicast(a) || a.Dst.Overlaps(p.local.V4.Subnet) || a.Dst.Overlaps(p.local.V6.Subnet) {
				t.Errorf("a path like %+v", a)
			}
			for _, b := range paths[:i] {
				if a.Dst.Overlaps(b.Dst) || a.Encap == b.Encap && a.Device == b.Device {
					t.Errorf("%+v is in the way of %+v", a, b)
				}
			}
		}
		if in := naive(newPlan(t, true), some); len(in)+len(out) != len(some) {
			t.Errorf("%d are in and %d out of %d", len(in), len(out), len(some))
		}
	})
}

// unicast reports whether a path leads to a tunnel end that can be one.
func unicast(p *dataplane.Path) bool {
	end, tunnelled := p.End()
	return tunnelled && end.MAC.Unicast()
}
