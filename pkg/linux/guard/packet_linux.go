package guard

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// parse reads the attributes of a message of NFLOG.
func (s *sampler) parse(attrs []byte) (found sample, ok bool) {
	for kind, value := range rtnetlink.Attrs(attrs) {
		switch kind {
		case nfulaDevice:
			if len(value) == 4 {
				found.device = int(binary.BigEndian.Uint32(value))
			}
		case nfulaPrefix:
			found.rule, found.claims = strings.CutPrefix(unix.ByteSliceToString(value), claimPrefix)
		case nfulaPayload:
			found.from, found.to, value, ok = parseIP(value)
			found.inner = s.config.innerSource(value)
		}
	}
	return found, ok
}

// parseIP returns the addresses of an IP packet, and its payload with the protocol in
// front.
func parseIP(p []byte) (from, to netip.Addr, payload []byte, ok bool) {
	if len(p) < 20 {
		return from, to, nil, false
	}
	switch header := int(p[0]&15) * 4; {
	case p[0]>>4 == 4 && header >= 20 && len(p) >= header:
		return netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:])), append([]byte{p[9]}, p[header:]...), true
	case p[0]>>4 == 6 && len(p) >= 40:
		return netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:])), append([]byte{p[6]}, p[40:]...), true
	}
	return from, to, nil, false
}

// innerSource returns the source of the packet inside of an outer packet, whose payload
// has the protocol in front; zero: it is none.
func (c Config) innerSource(payload []byte) netip.Addr {
	l, exists := c.layout()
	if !exists || len(payload) == 0 || payload[0] != c.Outer.Protocol {
		return netip.Addr{}
	}
	skip := 1 + int(l.at)
	if l.ethernet && len(payload) >= skip && isTag(payload[skip-2:]) {
		skip += tagBytes
	}
	from, _, _, _ := parseIP(payload[min(skip, len(payload)):])
	return from
}
