package dataplane

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/pkg/mac"
)

// What is written can be read back. That the kernel means the same by it, the tests with a kernel show.
func TestMessagesReadBack(t *testing.T) {
	for _, r := range []kernelRoute{
		{key: routeKey{netip.MustParsePrefix("10.5.2.0/24"), 0}, hop: hop{Via: netip.MustParseAddr("10.5.2.0"), Index: 7, Onlink: true}, protocol: protocolOurs},
		{key: routeKey{netip.MustParsePrefix("2001:db8::/64"), 1024}, hop: hop{Via: netip.MustParseAddr("fd00::1"), Index: 7}, protocol: protocolBoot},
		{key: routeKey{netip.MustParsePrefix("10.5.2.0/24"), 65536}, hop: hop{Blackhole: true}, protocol: protocolOurs},
	} {
		got, ok, err := parseRoute(message(nil).route(unix.RTM_NEWROUTE, 0, r)[unix.NLMSG_HDRLEN:])
		if err != nil || !ok || got != r {
			t.Errorf("%+v became %+v, %t, %v", r, got, ok, err)
		}
	}
	h := hop{Via: netip.MustParseAddr("10.5.2.0"), Index: 7, Onlink: true}
	id, protocol, got, err := parseNexthop(message(nil).nexthop(unix.RTM_NEWNEXTHOP, 0, 42, h)[unix.NLMSG_HDRLEN:])
	if err != nil || id != 42 || protocol != protocolOurs || got != h {
		t.Errorf("%+v became %d, %d, %+v, %v", h, id, protocol, got, err)
	}
	n := kernelNeigh{fam: unix.AF_BRIDGE, index: 7, permanent: true, ip: netip.MustParseAddr("192.168.0.2"), mac: mac.Addr{2, 0, 0, 0, 0, 1}}
	back, ok, err := parseNeigh(message(nil).neigh(unix.RTM_NEWNEIGH, 0, n.fam, n.index, n.ip, n.mac)[unix.NLMSG_HDRLEN:])
	if err != nil || !ok || back != n {
		t.Errorf("%+v became %+v, %t, %v", n, back, ok, err)
	}
}

func TestRefusals(t *testing.T) {
	// -EEXIST, then the header of the request.
	body := append([]byte{0xef, 0xff, 0xff, 0xff}, make([]byte, unix.NLMSG_HDRLEN)...)
	if err := parseRefusal(header{kind: unix.NLMSG_ERROR}, body); !errors.Is(err, unix.EEXIST) {
		t.Errorf("got %v, want %v", err, unix.EEXIST)
	}
	text := message(body).attr(1, []byte("Nexthop id does not exist\x00"))
	err := parseRefusal(header{kind: unix.NLMSG_ERROR, flags: 0x200}, text)
	if want := "file exists (Nexthop id does not exist)"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// The kernel is trusted, but a newer one may say things that we do not know.
func FuzzMessages(f *testing.F) {
	h := hop{Via: netip.MustParseAddr("10.5.2.0"), Index: 7}
	f.Add([]byte(message(nil).route(unix.RTM_NEWROUTE, 0, kernelRoute{key: routeKey{netip.MustParsePrefix("10.5.2.0/24"), 5}, hop: h})))
	f.Add([]byte(message(nil).nexthop(unix.RTM_NEWNEXTHOP, 0, 42, h)))
	f.Add([]byte(message(nil).neigh(unix.RTM_NEWNEIGH, 0, unix.AF_INET, 7, h.Via, mac.Addr{2})))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = messages(b, func(head header, body []byte) error {
			parseRefusal(head, body)
			return nil
		})
		b = b[min(len(b), unix.NLMSG_HDRLEN):]
		if r, ok, err := parseRoute(b); ok && (err != nil || !r.key.Dst.IsValid()) {
			t.Errorf("a route without a destination: %+v, %v", r, err)
		}
		_, _, _, _ = parseNexthop(b)
		_, _, _ = parseNeigh(b)
	})
}
