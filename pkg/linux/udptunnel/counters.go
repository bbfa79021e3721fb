package udptunnel

import (
	"sync/atomic"

	"flannel/pkg/dataplane"
)

// dropReason is why a packet or datagram was dropped.
type dropReason int

const (
	dropMalformed   dropReason = iota // a datagram that is not an IPv4 packet
	dropForeign                       // a datagram from another sender than the peer of the packet's source
	dropUnreachable                   // a packet to a subnet that no peer has
	dropExpired                       // TTL
	dropFailed                        // the kernel refused it
	drops
)

func (d dropReason) String() string {
	return [...]string{"malformed", "foreign", "unreachable", "expired", "failed"}[d]
}

// Counters count the packets of all tunnels that share them. The zero Counters are
// ready.
type Counters struct {
	sent, received traffic
	dropped        [drops]atomic.Uint64
}

// traffic counts packets of pods and their bytes, without the outer headers.
type traffic struct{ packets, bytes atomic.Uint64 }

// get returns what was counted.
func (t *traffic) get() dataplane.Flow {
	return dataplane.Flow{Packets: t.packets.Load(), Bytes: t.bytes.Load()}
}

// Get returns the values, with all reasons.
func (c *Counters) Get() dataplane.Forwarded {
	counts := dataplane.Forwarded{Sent: c.sent.get(), Received: c.received.get(), Dropped: map[string]uint64{}}
	for d := range drops {
		counts.Dropped[d.String()] = c.dropped[d].Load()
	}
	return counts
}
