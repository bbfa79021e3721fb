package linux

import (
	"net/netip"
	"sync/atomic"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/status/report"
)

// pollInterval is how often the peers are listed; pollShare bounds the share of the time
// that lists take, which grows with the number of peers: one part in so many.
const (
	pollInterval = 5 * time.Second
	pollShare    = 200
	maxInterval  = time.Minute
)

// poll starts to call relist regularly, until close, while there are devices.
func (s *wgStore) poll(relist func()) {
	s.active.Store(true)
	if !s.interval.CompareAndSwap(0, int64(pollInterval)) {
		return
	}
	s.done.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			case <-time.After(time.Duration(s.interval.Load())):
			}
			if s.active.Load() {
				relist()
			}
		}
	})
}

// close ends polling.
func (s *wgStore) close() {
	close(s.stop)
	s.done.Wait()
	s.client.close()
}

// summarize publishes the traffic of all peers. What a peer has received before the
// first list of this run does not count.
func (s *wgStore) summarize(states map[wgKey]*wgState) {
	s.active.Store(len(s.devices()) > 0)
	traffic, sum := make(map[netip.Prefix]report.Tunnel, len(states)), dataplane.TunnelSummary{Peers: len(states)}
	for key, state := range states {
		t := report.Tunnel{Endpoint: state.actual.Endpoint, Handshake: state.handshake, Received: state.received, Sent: state.sent}
		for _, allowed := range state.actual.Allowed {
			if allowed.IsValid() {
				traffic[allowed] = t
			}
		}
		if !t.Handshake.IsZero() && time.Since(t.Handshake) < sessionLasts {
			sum.Connected++
		}
		before, known := s.states[key]
		switch {
		case known && before.received <= state.received && before.sent <= state.sent:
			sum.Received += state.received - before.received
			sum.Sent += state.sent - before.sent
		case s.listed: // a new peer, or a new device with this peer
			sum.Received += state.received
			sum.Sent += state.sent
		}
	}
	s.listed = true
	s.traffic.Store(&traffic)
	if s.report != nil {
		s.report(sum)
	}
}

func (k *wireguard) traffic() map[netip.Prefix]report.Tunnel { return loadTraffic(&k.wg.traffic) }

// loadTraffic returns nil before the first list.
func loadTraffic(latest *atomic.Pointer[map[netip.Prefix]report.Tunnel]) map[netip.Prefix]report.Tunnel {
	if t := latest.Load(); t != nil {
		return *t
	}
	return nil
}
