package udptunnel

import (
	"bytes"
	"encoding/binary"
	"testing"

	"flannel/pkg/dataplane"
)

// ipPacket makes an IPv4 packet from 10.5.1.2 to 10.5.2.2.
func ipPacket(protocol, ttl byte, options int, payload ...byte) packet {
	header := ipHeader + options
	p := make(packet, header, header+len(payload))
	p = append(p, payload...)
	p[0] = 0x40 | byte(header/4)
	binary.BigEndian.PutUint16(p[lengthAt:], uint16(len(p)))
	p[ttlAt], p[protocolAt] = ttl, protocol
	copy(p[sourceAt:], []byte{10, 5, 1, 2, 10, 5, 2, 2})
	for i := ipHeader; i < header; i++ {
		p[i] = 1 // no operation
	}
	return p.sealed()
}

// sealed sets the checksum of the header.
func (p packet) sealed() packet {
	binary.BigEndian.PutUint16(p[checksumAt:], 0)
	binary.BigEndian.PutUint16(p[checksumAt:], dataplane.Checksum(p[:p.header()]))
	return p
}

func with(p packet, at int, value ...byte) packet {
	copy(p[at:], value)
	return p.sealed()
}

func TestParse(t *testing.T) {
	good := ipPacket(17, 64, 0, 1, 2, 3)
	for name, c := range map[string]struct {
		in packet
		ok bool
	}{
		"good": {good, true}, "with options": {ipPacket(17, 64, 8, 1, 2, 3), true}, "a header alone": {ipPacket(17, 64, 0), true},
		"nothing": {nil, false}, "a byte": {good[:1], false}, "half a header": {good[:19], false}, "cut off": {good[:len(good)-1], false},
		"with more behind":              {append(bytes.Clone(good), 0), false},
		"IPv6":                          {append(packet{0x60}, good[1:]...), false},
		"a header that is too short":    {append(packet{0x44}, good[1:]...), false},
		"a header beyond the end":       {append(packet{0x4f}, good[1:]...), false},
		"a wrong checksum":              {append(bytes.Clone(good[:checksumAt]), append([]byte{good[checksumAt] ^ 1}, good[checksumAt+1:]...)...), false},
		"only the length of a header":   {with(bytes.Clone(good), lengthAt, 0, 20), false},
		"a length beyond what is there": {with(bytes.Clone(good), lengthAt, 1, 0), false},
	} {
		if got := parse(c.in) != nil; got != c.ok {
			t.Errorf("%s: %x is a packet: %t", name, []byte(c.in), got)
		}
	}
}

// The checksum stays right for every TTL and every checksum.
func TestDecrementTTL(t *testing.T) {
	for ttl := range 256 {
		for id := 0; id < 1<<16; id += 251 {
			p := with(ipPacket(17, byte(ttl), 0), 4, byte(id>>8), byte(id))
			before := bytes.Clone(p)
			switch went := p.decrementTTL(); {
			case went != (ttl > 1):
				t.Fatalf("TTL %d: forwarded %t", ttl, went)
			case !went && !bytes.Equal(p, before):
				t.Fatalf("TTL %d: the packet was changed", ttl)
			case went && (parse(p) == nil || int(p[ttlAt]) != ttl-1):
				t.Fatalf("TTL %d, ID %d: became %x", ttl, id, []byte(p))
			}
		}
	}
}

func TestAnswers(t *testing.T) {
	long := bytes.Repeat([]byte{7}, 1400)
	for name, c := range map[string]struct {
		to   packet
		want bool
	}{
		"UDP": {ipPacket(17, 64, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9), true}, "a long one": {ipPacket(6, 64, 0, long...), true}, "options": {ipPacket(17, 64, 12, long...), true},
		"no payload": {ipPacket(17, 64, 0), true}, "an echo": {ipPacket(1, 64, 0, 8, 0), true}, "an echo reply": {ipPacket(1, 64, 0, 0, 0), true},
		"an ICMP error": {ipPacket(1, 64, 0, 3, 0), false}, "a redirect": {ipPacket(1, 64, 0, 5, 0), false}, "ICMP without a type": {ipPacket(1, 64, 0), false},
		"an unknown ICMP message": {ipPacket(1, 64, 0, 99), false}, "a first fragment": {with(ipPacket(17, 64, 0, 1), fragmentAt, 0x20, 0), true},
		"a later fragment": {with(ipPacket(17, 64, 0, 1), fragmentAt, 0x20, 1), false}, "the last fragment": {with(ipPacket(17, 64, 0, 1), fragmentAt, 0x1f, 0xff), false},
		"to a group": {with(ipPacket(17, 64, 0, 1), destAt, 224, 0, 0, 1), false}, "to all": {with(ipPacket(17, 64, 0, 1), destAt, 255, 255, 255, 255), false},
		"from nobody": {with(ipPacket(17, 64, 0, 1), sourceAt, 0, 0, 0, 0), false}, "from loopback": {with(ipPacket(17, 64, 0, 1), sourceAt, 127, 0, 0, 1), false},
	} {
		got := answerTo([]byte("room"), c.to, timeExceeded, 10<<24|5<<16|1<<8)
		if (got != nil) != c.want {
			t.Errorf("%s: answered %t", name, got != nil)
		}
		if got == nil {
			continue
		}
		p := parse(got[len("room"):])
		if p == nil || !bytes.HasPrefix(got, []byte("room")) || len(p) > maxAnswer || p.source() != 10<<24|5<<16|1<<8 || p.dest() != c.to.source() || p[ttlAt] != 64 || p[protocolAt] != 1 {
			t.Fatalf("%s: the answer %x", name, got)
		}
		icmp := p[p.header():]
		if icmp[0] != 11 || icmp[1] != 0 || dataplane.Checksum(icmp) != 0 || !bytes.HasPrefix(c.to, icmp[icmpHeader:]) || len(icmp[icmpHeader:]) < min(len(c.to), c.to.header()+8) {
			t.Errorf("%s: the ICMP message %x", name, []byte(icmp))
		}
	}
}

// Whatever comes from the underlay, a packet that was accepted stays one, and so is every answer.
func FuzzPacket(f *testing.F) {
	f.Add([]byte(ipPacket(17, 64, 0, 1, 2, 3)))
	f.Add([]byte(ipPacket(1, 2, 40, 8)))
	f.Add([]byte{0x45})
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := parse(raw)
		if p == nil {
			return
		}
		if p.decrementTTL() && parse(p) == nil {
			t.Fatalf("%x is not a packet any more", raw)
		}
		if a := answerTo(nil, p, networkUnreachable, 10<<24); a != nil && (parse(a) == nil || len(a) > maxAnswer) {
			t.Fatalf("the answer %x", a)
		}
	})
}
