package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/status"
)

// probed describes the metrics of probes.
type probed struct {
	read                             func() reach.Summary
	each                             func(add func(peer string, r status.Reach)) // nil: no metrics of each peer
	peers, requests, reachable, last *prometheus.Desc
}

// states are those of peers.
var states = []status.ReachState{status.Reachable, status.Unreachable, status.OneWay, status.NotForwarding, status.SmallOnly, status.Unproven, status.UnknownReach}

// Probes adds metrics of probes. each calls its argument for each peer; nil: there are
// no metrics of each.
func (m *Metrics) Probes(read func() reach.Summary, each func(add func(peer string, r status.Reach))) {
	m.registry.MustRegister(probed{read, each,
		prometheus.NewDesc("flanneld_probed_peers", "Peers that are probed, by what is known of them.", []string{"state"}, nil),
		prometheus.NewDesc("flanneld_probes_total", "Probes that were sent, that were answered, and that could not be sent.", []string{"result"}, nil),
		prometheus.NewDesc("flanneld_peer_reachable", "1 if the peer is reachable, 0 if it is not; absent: not known. With --peer-metrics.", []string{"peer"}, nil),
		prometheus.NewDesc("flanneld_peer_rtt_seconds", "Time until the peer answered the last time. With --peer-metrics.", []string{"peer"}, nil)})
}

// ProbeRTT counts an answer.
func (m *Metrics) ProbeRTT(took time.Duration) { m.rtt.Observe(took.Seconds()) }

// Describe implements prometheus.Collector.
func (p probed) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.peers, p.requests, p.reachable, p.last} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (p probed) Collect(to chan<- prometheus.Metric) {
	s := p.read()
	for _, state := range states {
		to <- prometheus.MustNewConstMetric(p.peers, prometheus.GaugeValue, float64(s.Peers[state]), string(state))
	}
	for result, n := range map[string]uint64{"sent": s.Counts.Sent, "answered": s.Counts.Answered, "failed": s.Counts.Failed} {
		to <- prometheus.MustNewConstMetric(p.requests, prometheus.CounterValue, float64(n), result)
	}
	if p.each == nil {
		return
	}
	p.each(func(peer string, r status.Reach) {
		if r.State != status.UnknownReach && r.State != status.Unproven {
			reachable := 0.0
			if r.State == status.Reachable {
				reachable = 1
			}
			to <- prometheus.MustNewConstMetric(p.reachable, prometheus.GaugeValue, reachable, peer)
		}
		if !r.Answered.IsZero() {
			to <- prometheus.MustNewConstMetric(p.last, prometheus.GaugeValue, time.Duration(r.RTT).Seconds(), peer)
		}
	})
}
