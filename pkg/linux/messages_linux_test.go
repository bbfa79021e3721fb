package linux

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
)

// What is written can be read back. That the kernel means the same by it, the tests with a kernel show.
func TestMessagesReadBack(t *testing.T) {
	for _, r := range []kernelRoute{
		{key: routeKey{netip.MustParsePrefix("10.5.2.0/24"), 0}, hop: hop{Via: netip.MustParseAddr("10.5.2.0"), Index: 7, Onlink: true}, protocol: protocolOurs},
		{key: routeKey{netip.MustParsePrefix("2001:db8::/64"), 1024}, hop: hop{Via: netip.MustParseAddr("fd00::1"), Index: 7}, protocol: protocolBoot},
		{key: routeKey{netip.MustParsePrefix("10.5.2.0/24"), 65536}, hop: hop{Blackhole: true}, protocol: protocolOurs},
	} {
		got, ok, err := parseRoute(writeRoute(nil, unix.RTM_NEWROUTE, 0, r)[unix.NLMSG_HDRLEN:])
		if err != nil || !ok || got != r {
			t.Errorf("%+v became %+v, %t, %v", r, got, ok, err)
		}
	}
	h := hop{Via: netip.MustParseAddr("10.5.2.0"), Index: 7, Onlink: true}
	id, protocol, got, err := parseNexthop(writeNexthop(nil, unix.RTM_NEWNEXTHOP, 0, 42, h)[unix.NLMSG_HDRLEN:])
	if err != nil || id != 42 || protocol != protocolOurs || got != h {
		t.Errorf("%+v became %d, %d, %+v, %v", h, id, protocol, got, err)
	}
	n := kernelNeigh{fam: unix.AF_BRIDGE, index: 7, permanent: true, ip: netip.MustParseAddr("192.168.0.2"), mac: dataplane.MAC{2, 0, 0, 0, 0, 1}}
	back, ok, err := parseNeigh(writeNeigh(nil, unix.RTM_NEWNEIGH, 0, n.fam, n.index, n.ip, n.mac)[unix.NLMSG_HDRLEN:])
	if err != nil || !ok || back != n {
		t.Errorf("%+v became %+v, %t, %v", n, back, ok, err)
	}
}

// The kernel is trusted, but a newer one may say things that we do not know.
func FuzzMessages(f *testing.F) {
	h := hop{Via: netip.MustParseAddr("10.5.2.0"), Index: 7}
	f.Add([]byte(writeRoute(nil, unix.RTM_NEWROUTE, 0, kernelRoute{key: routeKey{netip.MustParsePrefix("10.5.2.0/24"), 5}, hop: h})))
	f.Add([]byte(writeNexthop(nil, unix.RTM_NEWNEXTHOP, 0, 42, h)))
	f.Add([]byte(writeNeigh(nil, unix.RTM_NEWNEIGH, 0, unix.AF_INET, 7, h.Via, dataplane.MAC{2})))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[min(len(b), unix.NLMSG_HDRLEN):]
		if r, ok, err := parseRoute(b); ok && (err != nil || !r.key.Dst.IsValid()) {
			t.Errorf("a route without a destination: %+v, %v", r, err)
		}
		_, _, _, _ = parseNexthop(b)
		_, _, _ = parseNeigh(b)
	})
}
