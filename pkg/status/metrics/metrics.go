// Package metrics holds the daemon's Prometheus metrics, in a registry of its
// own.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status/report"
	"flannel/pkg/version"
)

// Metrics are the daemon's metrics. Make them with New.
type Metrics struct {
	registry *prometheus.Registry
	peers    prometheus.Gauge
	invalid  prometheus.Gauge
	retained prometheus.Gauge
	refused  prometheus.Gauge
	upToDate prometheus.Gauge
	pending  prometheus.Gauge
	lastSync prometheus.Gauge
	sync     prometheus.Histogram
	entries  *prometheus.GaugeVec
	changes  *prometheus.CounterVec
	repairs  *prometheus.CounterVec
	errors   *prometheus.CounterVec
	tunnels  *prometheus.GaugeVec
	bytes    *prometheus.CounterVec
	rtt      prometheus.Histogram
}

// New returns metrics in a new registry, together with those of the process and
// the Go runtime.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	register := promauto.With(m.registry)
	gauge := func(name, help string) prometheus.Gauge {
		return register.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: name, Help: help})
	}
	m.peers = gauge("peers", "Peers that are used: their leases are valid, or they are retained.")
	m.invalid = gauge("invalid_peers", "Peers that are rejected, because of an invalid or conflicting lease.")
	m.retained = gauge("retained_peers", "Peers that are retained although the store has lost their leases.")
	m.refused = gauge("refused_peers", "Peers that are used, but for which the operating system refused an entry.")
	m.upToDate = gauge("in_step", "1 if the last pass left the network up to date, else 0.")
	m.pending = gauge("config_pending", "1 if the network configuration in the store is pending, on trial, unproven or refused, else 0.")
	m.lastSync = gauge("last_sync_timestamp_seconds", "Unix time of the last pass that left the network up to date.")
	m.sync = register.NewHistogram(prometheus.HistogramOpts{Namespace: "flanneld", Name: "sync_seconds",
		Help:    "Duration of passes, each of which reconciles the desired with the actual state.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)})
	m.entries = register.NewGaugeVec(prometheus.GaugeOpts{Namespace: "flanneld", Name: "entries",
		Help: "Desired entries in a table of the operating system."}, []string{"table"})
	m.changes = register.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "changes_total",
		Help: "Entries that were set, deleted, or refused by the operating system."}, []string{"table", "op"})
	m.repairs = register.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "repairs_total",
		Help: "What somebody else had changed, deleted or added, and flanneld has changed back."}, []string{"what"})
	m.errors = register.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "errors_total",
		Help: "Failed passes, by the part that failed."}, []string{"part"})
	m.tunnels = register.NewGaugeVec(prometheus.GaugeOpts{Namespace: "flanneld", Name: "wireguard_peers",
		Help: "Peers of WireGuard devices, by whether they have a valid session: a handshake within three minutes."}, []string{"session"})
	m.bytes = register.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "wireguard_bytes_total",
		Help: "Encrypted bytes from and to all peers since the start of flanneld."}, []string{"direction"})
	m.rtt = register.NewHistogram(prometheus.HistogramOpts{Namespace: "flanneld", Name: "probe_rtt_seconds",
		Help:    "Time until a peer answered a probe.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)})
	register.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: "build_info",
		Help:        "1, labelled with what was built.",
		ConstLabels: prometheus.Labels{"version": version.Version, "commit": version.Commit, "goversion": runtime.Version()}}).Set(1)
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the registry.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Peers holds numbers of peers. Refused and Retained are part of Used.
type Peers struct {
	Used     int
	Invalid  int // rejected
	Refused  int // the operating system refused an entry
	Retained int // the store has no lease any more
}

// Peers sets the numbers of peers.
func (m *Metrics) Peers(p Peers) {
	m.peers.Set(float64(p.Used))
	m.invalid.Set(float64(p.Invalid))
	m.refused.Set(float64(p.Refused))
	m.retained.Set(float64(p.Retained))
}

// stored describes the metrics of the store of leases.
type stored struct {
	away, expires     func() time.Time
	silent, remaining *prometheus.Desc
}

// Store adds metrics of the store of leases: away returns since when it does not
// answer (zero: it does), and expires when this node's lease ends (zero: never, or
// not known).
func (m *Metrics) Store(away, expires func() time.Time) {
	m.registry.MustRegister(stored{away, expires,
		prometheus.NewDesc("flanneld_store_silent_seconds", "How long the store of leases has not answered; 0: it answers.", nil, nil),
		prometheus.NewDesc("flanneld_lease_remaining_seconds", "Time until this node's lease ends unless it is renewed.", nil, nil)})
}

// Describe implements prometheus.Collector.
func (s stored) Describe(to chan<- *prometheus.Desc) {
	to <- s.silent
	to <- s.remaining
}

// Collect implements prometheus.Collector.
func (s stored) Collect(to chan<- prometheus.Metric) {
	silent := 0.0
	if away := s.away(); !away.IsZero() {
		silent = time.Since(away).Seconds()
	}
	to <- prometheus.MustNewConstMetric(s.silent, prometheus.GaugeValue, silent)
	if expires := s.expires(); !expires.IsZero() {
		to <- prometheus.MustNewConstMetric(s.remaining, prometheus.GaugeValue, time.Until(expires).Seconds())
	}
}

// forwarded describes the metrics of a dataplane that forwards packets itself.
type forwarded struct {
	read                    func() *report.Forwarded
	packets, bytes, dropped *prometheus.Desc
}

// Forwarded adds metrics of what a dataplane forwards and drops. There are none as
// long as read returns nil.
func (m *Metrics) Forwarded(read func() *report.Forwarded) {
	desc := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc("flanneld_udp_"+name, help, []string{label}, nil)
	}
	m.registry.MustRegister(forwarded{read,
		desc("packets_total", "Packets of pods that the udp backend sent to peers and received from them.", "direction"),
		desc("bytes_total", "Bytes of these packets, without the outer headers.", "direction"),
		desc("dropped_packets_total", "Packets and datagrams that the udp backend dropped, by reason.", "reason")})
}

// Describe implements prometheus.Collector.
func (f forwarded) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.packets, f.bytes, f.dropped} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (f forwarded) Collect(to chan<- prometheus.Metric) {
	counts := f.read()
	if counts == nil {
		return
	}
	count := func(d *prometheus.Desc, n uint64, label string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	for direction, t := range map[string]report.Flow{"sent": counts.Sent, "received": counts.Received} {
		count(f.packets, t.Packets, direction)
		count(f.bytes, t.Bytes, direction)
	}
	for reason, n := range counts.Dropped {
		count(f.dropped, n, reason)
	}
}

// guarded describes the metrics of a dataplane's guard.
type guarded struct {
	read             func() *report.Guard
	packets, working *prometheus.Desc
}

// Guard adds metrics of the guard of the pod network. There are none as long as read
// returns nil.
func (m *Metrics) Guard(read func() *report.Guard) {
	m.registry.MustRegister(guarded{read,
		prometheus.NewDesc("flanneld_guard_packets_total", "Packets that the guard dropped (mode enforce), or found and only counted (audit), by rule.", []string{"mode", "rule"}, nil),
		prometheus.NewDesc("flanneld_guard_working", "Whether the guard could be set up as configured, by mode.", []string{"mode"}, nil)})
}

// Describe implements prometheus.Collector.
func (g guarded) Describe(to chan<- *prometheus.Desc) {
	to <- g.packets
	to <- g.working
}

// Collect implements prometheus.Collector.
func (g guarded) Collect(to chan<- prometheus.Metric) {
	state := g.read()
	if state == nil {
		return
	}
	mode, working := "audit", 1.0
	if state.Enforce {
		mode = "enforce"
	}
	if state.Problem != "" {
		working = 0
	}
	to <- prometheus.MustNewConstMetric(g.working, prometheus.GaugeValue, working, mode)
	for rule, n := range state.Packets {
		dropped := min(state.Dropped[rule], n)
		to <- prometheus.MustNewConstMetric(g.packets, prometheus.CounterValue, float64(dropped), "enforce", rule)
		to <- prometheus.MustNewConstMetric(g.packets, prometheus.CounterValue, float64(n-dropped), "audit", rule)
	}
}

// ConfigPending sets whether the latest network configuration is pending, on
// trial or refused.
func (m *Metrics) ConfigPending(pending bool) {
	setBool(m.pending, pending)
}

func setBool(gauge prometheus.Gauge, value bool) {
	number := 0.0
	if value {
		number = 1
	}
	gauge.Set(number)
}

// Table sets the number of desired entries of a table, and counts the changes
// of one reconciliation.
func (m *Metrics) Table(name string, entries int, done reconcile.Result) {
	m.entries.WithLabelValues(name).Set(float64(entries))
	for op, n := range map[string]int{"set": done.Set, "delete": done.Deleted, "refused": done.Failed} {
		m.changes.WithLabelValues(name, op).Add(float64(n))
	}
}

// Repaired counts n repairs of a table, of devices, sysctls, the guard's rules, endpoints
// of HNS, or places of firewall rules.
func (m *Metrics) Repaired(what string, n int) { m.repairs.WithLabelValues(what).Add(float64(n)) }

// Tunnels sets the numbers of WireGuard peers, and counts their traffic.
func (m *Metrics) Tunnels(s dataplane.TunnelSummary) {
	m.tunnels.WithLabelValues("valid").Set(float64(s.Connected))
	m.tunnels.WithLabelValues("none").Set(float64(s.Peers - s.Connected))
	m.bytes.WithLabelValues("received").Add(float64(s.Received))
	m.bytes.WithLabelValues("sent").Add(float64(s.Sent))
}

// Pass records a pass: its duration, whether it left the network up to date,
// and the parts that failed.
func (m *Metrics) Pass(took time.Duration, upToDate bool, failed []string) {
	m.sync.Observe(took.Seconds())
	for _, part := range failed {
		m.errors.WithLabelValues(part).Inc()
	}
	setBool(m.upToDate, upToDate)
	if upToDate {
		m.lastSync.SetToCurrentTime()
	}
}
