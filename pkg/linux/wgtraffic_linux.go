package linux

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// The kernel has no notifications about peers, so they are listed regularly. A list takes
// the longer the more peers there are. List therefore sets the pause to pollShare times
// what it took, so that lists take half a percent of the time, within these limits. ipsec also
// polls at pollInterval.
const (
	pollInterval = 5 * time.Second
	maxInterval  = time.Minute
	pollShare    = 200
)

// poll starts a goroutine that calls relist after each pause, while there are devices,
// until close. relist makes the next pass list the peers. Only the first call of poll
// starts the goroutine; the driver calls poll whenever it ensures a device.
func (s *wgStore) poll(relist func()) {
	s.active.Store(true)
	if !s.interval.CompareAndSwap(0, int64(pollInterval)) {
		return
	}
	s.done.Go(func() {
		// Wait returns -1 at the end of the pause, which OnBeat puts on one of the process' common instants.
		for reconcile.Wait(context.Background(), reconcile.OnBeat(time.Duration(s.interval.Load())), s.stop) < 0 {
			if s.active.Load() { // else all devices were deleted, which summarize has seen
				relist()
			}
		}
	})
}

// close ends polling, and closes the client.
func (s *wgStore) close() {
	close(s.stop)
	s.done.Wait()
	s.client.close()
}

// summarize publishes what List has read of all peers (states; s.states is still that of the
// list before): for Traffic each peer's counters, and as metrics, by report, the number of peers
// with a session and the growth of the counters since the last list. In the first list of this
// run there is no growth: the counters are those since the device was made.
func (s *wgStore) summarize(states map[wgKey]*wgState) {
	s.active.Store(len(s.devices()) > 0) // poll stops having peers listed when there is no device any more
	traffic, sum := make(map[netip.Prefix]dataplane.TunnelReport, len(states)), dataplane.TunnelSummary{Peers: len(states)}
	for key, state := range states {
		t := dataplane.TunnelReport{Endpoint: state.actual.Endpoint, Handshake: state.handshake, Received: state.received, Sent: state.sent}
		for _, allowed := range state.actual.Allowed {
			if allowed.IsValid() {
				traffic[allowed] = t
			}
		}
		if state.live() {
			sum.Connected++
		}
		before, known := s.states[key]
		switch {
		case known && before.received <= state.received && before.sent <= state.sent:
			sum.Received += state.received - before.received
			sum.Sent += state.sent - before.sent
		case s.listed: // a new peer, or a new device on which the counters began at 0
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

// traffic implements kind. The keys are the subnets of the peers.
func (k *wireguard) traffic() map[netip.Prefix]dataplane.TunnelReport {
	return loadTraffic(&k.wg.traffic)
}

// loadTraffic returns the traffic that was published last, nil before the first list. ipsec
// publishes its tunnels in the same way.
func loadTraffic(latest *atomic.Pointer[map[netip.Prefix]dataplane.TunnelReport]) map[netip.Prefix]dataplane.TunnelReport {
	if t := latest.Load(); t != nil {
		return *t
	}
	return nil
}
