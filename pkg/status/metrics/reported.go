package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flannel/pkg/status"
	"flannel/pkg/status/report"
)

// reported shows what a board reports. What the report does not have, such as a guard,
// has no metrics.
type reported struct {
	board *status.Board

	peers, invalid, retained, refused, upToDate, pending *prometheus.Desc

	silent, remaining       *prometheus.Desc // of the store of leases
	packets, bytes, dropped *prometheus.Desc // of a dataplane that forwards packets itself
	guarded, working        *prometheus.Desc

	probed, requests *prometheus.Desc
	reachable, last  *prometheus.Desc // of each peer
	tooMany          func()           // see New
}

func newReported(b *status.Board, tooMany func()) reported {
	desc := func(prefix, name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, labels, nil)
	}
	const all, udp = "flanneld_", "flanneld_udp_"
	return reported{
		board:     b,
		tooMany:   tooMany,
		peers:     desc(all, "peers", "Peers that are used: their leases are valid, or they are retained."),
		invalid:   desc(all, "invalid_peers", "Peers that are rejected, because of an invalid or conflicting lease."),
		retained:  desc(all, "retained_peers", "Peers that are retained although the store has lost their leases."),
		refused:   desc(all, "refused_peers", "Peers that are used, but for which the operating system refused an entry."),
		upToDate:  desc(all, "in_step", "1 if the last pass left the network up to date, else 0."),
		pending:   desc(all, "config_pending", "1 if the network configuration in the store is pending, on trial, unproven or refused, else 0."),
		silent:    desc("", "flanneld_store_silent_seconds", "How long the store of leases has not answered; 0: it answers."),
		remaining: desc("", "flanneld_lease_remaining_seconds", "Time until this node's lease ends unless it is renewed."),
		packets:   desc(udp, "packets_total", "Packets of pods that the udp backend sent to peers and received from them.", "direction"),
		bytes:     desc(udp, "bytes_total", "Bytes of these packets, without the outer headers.", "direction"),
		dropped:   desc(udp, "dropped_packets_total", "Packets and datagrams that the udp backend dropped, by reason.", "reason"),
		guarded:   desc("", "flanneld_guard_packets_total", "Packets that the guard dropped (mode enforce), or found and only counted (audit), by rule.", "mode", "rule"),
		working:   desc("", "flanneld_guard_working", "Whether the guard could be set up as configured, by mode.", "mode"),
		probed:    desc("", "flanneld_probed_peers", "Peers that are probed, by what is known of them.", "state"),
		requests:  desc("", "flanneld_probes_total", "Probes that were sent, that were answered, and that could not be sent.", "result"),
		reachable: desc("", "flanneld_peer_reachable", "1 if the peer is reachable, 0 if it is not; absent: not known. With --peer-metrics.", "peer"),
		last:      desc("", "flanneld_peer_rtt_seconds", "Time until the peer answered the last time. With --peer-metrics.", "peer"),
	}
}

// MaxPeers is the largest number of probed peers with metrics of their own.
const MaxPeers = 100

// Describe implements prometheus.Collector.
func (m reported) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.peers, m.invalid, m.retained, m.refused, m.upToDate, m.pending, m.silent, m.remaining,
		m.packets, m.bytes, m.dropped, m.guarded, m.working, m.probed, m.requests, m.reachable, m.last} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m reported) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	r := m.board.Now(status.OfStore, status.OfNode, status.OfDataplane, status.OfProbes)
	gauge(m.peers, float64(r.Counts.Used))
	gauge(m.invalid, float64(r.Counts.Rejected))
	gauge(m.retained, float64(r.Counts.Retained))
	gauge(m.refused, float64(r.Counts.Refused))
	gauge(m.upToDate, number(r.Ready))
	gauge(m.pending, number(r.Pending != ""))
	silent := 0.0
	if !r.OutageSince.IsZero() {
		silent = time.Since(r.OutageSince).Seconds()
	}
	gauge(m.silent, silent)
	if !r.LeaseExpires.IsZero() {
		gauge(m.remaining, time.Until(r.LeaseExpires).Seconds())
	}
	if f := r.Forwarded; f != nil {
		for direction, flow := range map[string]report.Flow{"sent": f.Sent, "received": f.Received} {
			count(m.packets, flow.Packets, direction)
			count(m.bytes, flow.Bytes, direction)
		}
		for reason, n := range f.Dropped {
			count(m.dropped, n, reason)
		}
	}
	if g := r.Guard; g != nil {
		mode := "audit"
		if g.Enforce {
			mode = "enforce"
		}
		gauge(m.working, number(g.Problem == ""), mode)
		for rule, n := range g.Packets {
			dropped := min(g.Dropped[rule], n)
			count(m.guarded, dropped, "enforce", rule)
			count(m.guarded, n-dropped, "audit", rule)
		}
	}
	if p := r.Probes; p != nil {
		for result, n := range map[string]uint64{"sent": p.Sent, "answered": p.Answered, "failed": p.Failed} {
			count(m.requests, n, result)
		}
		peers := 0
		for _, state := range reachStates {
			gauge(m.probed, float64(p.Peers[state]), string(state))
			peers += p.Peers[state]
		}
		switch {
		case m.tooMany == nil:
		case peers > MaxPeers:
			m.tooMany()
		default:
			m.collectPeers(gauge)
		}
	}
}

var reachStates = []status.ReachState{status.Reachable, status.Unreachable, status.OneWay, status.NotForwarding, status.SmallOnly, status.Unproven, status.UnknownReach}

// collectPeers collects the metrics of each peer.
func (m reported) collectPeers(gauge func(d *prometheus.Desc, value float64, labels ...string)) {
	for _, p := range m.board.Now(status.OfPeers).Peers {
		if p.Reach == nil { // it is not probed
			continue
		}
		if s := p.Reach.State; s != status.UnknownReach && s != status.Unproven {
			gauge(m.reachable, number(s == status.Reachable), p.Name)
		}
		if !p.Reach.Answered.IsZero() {
			gauge(m.last, time.Duration(p.Reach.RTT).Seconds(), p.Name)
		}
	}
}

// number is 1 for true, and else 0.
func number(value bool) float64 {
	if value {
		return 1
	}
	return 0
}
