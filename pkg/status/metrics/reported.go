package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

// reported renders what a board reports as metrics, at each scrape anew. What the report
// does not have, such as a guard, has no metrics. Scrapes may run at the same time.
type reported struct {
	board   *status.Board
	tooMany func()                      // see New; nil: no metrics of each peer
	descs   map[string]*prometheus.Desc // of all metrics, by name
}

// rendered is the table of the metrics. A new metric needs one row, and a line in
// Collect or in what Collect calls.
var rendered = []struct {
	name, help string
	labels     []string
}{
	{"flanneld_peers", "Peers that are used: their leases are valid, or they are retained.", nil},
	{"flanneld_invalid_peers", "Peers that are rejected, because of an invalid or conflicting lease.", nil},
	{"flanneld_retained_peers", "Peers that are retained although the store has lost their leases.", nil},
	{"flanneld_refused_peers", "Peers that are used, but for which the operating system refused an entry.", nil},
	{"flanneld_in_step", "1 if the last pass left the network up to date, else 0.", nil},
	{"flanneld_config_pending", "1 if the network configuration in the store is pending, on trial, unproven, refused or left for the next start, else 0.", nil},
	{"flanneld_store_silent_seconds", "How long the store of leases has not answered, or has been too busy; 0: it answers.", nil},
	{"flanneld_store_refuses", "1 if the store of leases answers, and refuses a request of this node for leases or the configuration, else 0.", nil},
	{"flanneld_lease_remaining_seconds", "Time until this node's lease ends unless it is renewed.", nil},
	{"flanneld_udp_packets_total", "Packets of pods that the udp backend sent to peers and received from them.", []string{"direction"}},
	{"flanneld_udp_bytes_total", "Bytes of these packets, without the outer headers.", []string{"direction"}},
	{"flanneld_udp_dropped_packets_total", "Packets and datagrams that the udp backend dropped, by reason.", []string{"reason"}},
	{"flanneld_guard_packets_total", "Packets that the guard dropped (mode enforce), or found and only counted (audit), by rule.", []string{"mode", "rule"}},
	{"flanneld_guard_joined_packets_total", "Those that the guard only counted, of nodes whose leases were not known yet, by rule.", []string{"rule"}},
	{"flanneld_guard_working", "1 if the guard works as configured, 0 if it does not, or still lets former peers through, by mode.", []string{"mode"}},
	{"flanneld_probed_peers", "Peers that are probed, by what is known of them.", []string{"state"}},
	{"flanneld_probes_total", "Probes that were sent, that were answered, and that could not be sent.", []string{"result"}},
	{"flanneld_peer_reachable", "1 if the peer is reachable, 0 if it is not; absent: not known. With --peer-metrics.", []string{"peer"}},
	{"flanneld_peer_rtt_seconds", "Time until the peer answered the last time. With --peer-metrics.", []string{"peer"}},
}

// newReported returns the collector of what b reports.
func newReported(b *status.Board, tooMany func()) reported {
	m := reported{board: b, tooMany: tooMany, descs: make(map[string]*prometheus.Desc, len(rendered))}
	for _, row := range rendered {
		m.descs[row.name] = prometheus.NewDesc(row.name, row.help, row.labels, nil)
	}
	return m
}

// MaxPeers is the largest number of probed peers with metrics of their own.
const MaxPeers = 100

// Describe implements prometheus.Collector.
func (m reported) Describe(to chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m reported) Collect(to chan<- prometheus.Metric) {
	s := scrape{m.descs, to}
	r := m.board.Now(status.OfStore, status.OfNode, status.OfDataplane, status.OfProbes)
	s.gauge("flanneld_peers", float64(r.Counts.Used))
	s.gauge("flanneld_invalid_peers", float64(r.Counts.Rejected))
	s.gauge("flanneld_retained_peers", float64(r.Counts.Retained))
	s.gauge("flanneld_refused_peers", float64(r.Counts.Refused))
	s.gauge("flanneld_in_step", number(r.Ready))
	s.gauge("flanneld_config_pending", number(r.Pending != ""))
	silent := 0.0
	if !r.OutageSince.IsZero() {
		silent = time.Since(r.OutageSince).Seconds()
	}
	s.gauge("flanneld_store_silent_seconds", silent)
	s.gauge("flanneld_store_refuses", number(r.Outage != "" && r.OutageSince.IsZero()))
	if !r.LeaseExpires.IsZero() {
		s.gauge("flanneld_lease_remaining_seconds", time.Until(r.LeaseExpires).Seconds())
	}
	s.forwarded(r.Forwarded)
	s.guard(r.Guard)
	s.probes(r.Probes)
	switch {
	case m.tooMany == nil || r.Probes == nil:
	case sum(r.Probes.Peers) > MaxPeers:
		m.tooMany()
	default: // the report of all peers is made for this alone
		s.eachPeer(m.board.Now(status.OfPeers).Peers)
	}
}

// scrape is one call of Collect.
type scrape struct {
	descs map[string]*prometheus.Desc
	to    chan<- prometheus.Metric
}

// gauge sends the value of a metric that rises and falls; labels are the values of those in
// the table.
func (s scrape) gauge(name string, value float64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, value, labels...)
}

// count sends the value of a metric that only rises.
func (s scrape) count(name string, n uint64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.CounterValue, float64(n), labels...)
}

// forwarded sends the metrics of the udp backend; nil: the node has another backend.
func (s scrape) forwarded(f *dataplane.Forwarded) {
	if f == nil {
		return
	}
	for direction, flow := range map[string]dataplane.Flow{"sent": f.Sent, "received": f.Received} {
		s.count("flanneld_udp_packets_total", flow.Packets, direction)
		s.count("flanneld_udp_bytes_total", flow.Bytes, direction)
	}
	for reason, n := range f.Dropped {
		s.count("flanneld_udp_dropped_packets_total", n, reason)
	}
}

// guard sends the metrics of the guard; nil: there is none.
func (s scrape) guard(g *dataplane.GuardReport) {
	if g == nil {
		return
	}
	mode := "audit"
	if g.Enforce {
		mode = "enforce"
	}
	s.gauge("flanneld_guard_working", number(g.Problem == ""), mode)
	for rule, n := range g.Packets {
		dropped := min(g.Dropped[rule], n)
		// Both, whatever the mode is: before it enforced, the guard may have counted.
		s.count("flanneld_guard_packets_total", dropped, "enforce", rule)
		s.count("flanneld_guard_packets_total", n-dropped, "audit", rule)
		s.count("flanneld_guard_joined_packets_total", g.Joined[rule], rule)
	}
}

// probes sends the metrics of all probes together; nil: this node sends none.
func (s scrape) probes(p *status.Probes) {
	if p == nil {
		return
	}
	for result, n := range map[string]uint64{"sent": p.Sent, "answered": p.Answered, "failed": p.Failed} {
		s.count("flanneld_probes_total", n, result)
	}
	for _, state := range reachStates { // those without peers, too, as 0
		s.gauge("flanneld_probed_peers", float64(p.Peers[state]), string(state))
	}
}

// reachStates are all states of peers that are probed.
var reachStates = []status.ReachState{status.Reachable, status.Unreachable, status.OneWay, status.NotForwarding, status.SmallOnly, status.Unproven, status.UnknownReach}

// eachPeer sends the metrics of each peer that is probed.
func (s scrape) eachPeer(peers []status.Peer) {
	for _, p := range peers {
		if p.Reach == nil { // it is not probed
			continue
		}
		if state := p.Reach.State; state != status.UnknownReach && state != status.Unproven {
			s.gauge("flanneld_peer_reachable", number(state == status.Reachable), p.Name)
		}
		if !p.Reach.Answered.IsZero() {
			s.gauge("flanneld_peer_rtt_seconds", time.Duration(p.Reach.RTT).Seconds(), p.Name)
		}
	}
}

// sum returns the number of peers in all states.
func sum(peers map[status.ReachState]int) (n int) {
	for _, count := range peers {
		n += count
	}
	return n
}

// number is 1 for true, and else 0.
func number(value bool) float64 {
	if value {
		return 1
	}
	return 0
}
