package path

import (
	"context"
	"time"
)

// wireGuard is the kind of paths of which handshake reads the packets.
const wireGuard = "wireguard"

// wgRetry is longer than WireGuard waits before it sends the next initiation: 5 seconds
// and up to a third of one.
const wgRetry = 6 * time.Second

// Types of WireGuard's messages.
const (
	wgInitiation = 1
	wgResponse   = 2
	wgData       = 4
)

// handshake has the types of WireGuard's messages that were seen, from a peer and to it.
type handshake struct {
	from, to [wgData + 1]bool
}

// see takes a packet of the tunnel.
func (h *handshake) see(p packet, ipHeader int) {
	at := ipHeader + udpHeader
	if len(p.data) <= at || int(p.data[at]) >= len(h.from) {
		return
	}
	if p.outgoing {
		h.to[p.data[at]] = true
	} else {
		h.from[p.data[at]] = true
	}
}

// refused reports whether messages arrived that WireGuard did not accept, if no handshake
// was completed. An initiation is accepted if it is answered: if the peer begins again
// nevertheless, the answers do not arrive there. A response would complete the handshake.
// With data, the keys were right.
func (h *handshake) refused() bool {
	switch {
	case h.from[wgData]:
		return false
	case h.from[wgResponse]:
		return true
	}
	return h.from[wgInitiation] && !h.to[wgResponse]
}

// waitFor waits until happened is closed, ctx ends, or the limit is over.
func waitFor(ctx context.Context, happened <-chan struct{}, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-happened:
	case <-ctx.Done():
	}
}
