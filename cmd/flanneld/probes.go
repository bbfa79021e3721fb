package main

import (
	"log/slog"
	"sync"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/probe/icmp"
	"flannel/pkg/status"
	"flannel/pkg/status/metrics"
)

// maxPeerMetrics is the largest number of peers with metrics of their own.
const maxPeerMetrics = 100

// newProber opens the prober; it is nil if there is to be none, or no permission for it.
// The caller must call close.
func newProber(o options, log *slog.Logger, counts *metrics.Metrics) (p *reach.Prober, close func() error) {
	close = func() error { return nil }
	if !o.Probe || o.OS == "windows" { // whose hosts have no address in the pod network
		return nil, close
	}
	conn, err := icmp.Open(reach.Magic)
	if err != nil {
		reach.Unavailable(log, err)
		return nil, close
	}
	p = reach.New(conn, reach.Options{Log: log, RTT: counts.ProbeRTT})
	counts.Probes(p.Summary, perPeer(o, p, log))
	return p, conn.Close
}

// perPeer returns a function that calls add for each peer, if the operator wants metrics
// of each, and there are not too many; else nil.
func perPeer(o options, p *reach.Prober, log *slog.Logger) func(add func(peer string, r status.Reach)) {
	if !o.PeerMetrics {
		return nil
	}
	var once sync.Once
	return func(add func(string, status.Reach)) {
		if p.Each(maxPeerMetrics, add) {
			once.Do(func() {
				log.Warn("too many peers for metrics of each, see --peer-metrics; those of all peers together remain", "cause", causeManyPeers, "most", maxPeerMetrics)
			})
		}
	}
}
