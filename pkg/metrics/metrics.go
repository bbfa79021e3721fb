// Package metrics holds the daemon's Prometheus metrics, in a registry of its
// own.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"flannel/pkg/reconcile"
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
	errors   *prometheus.CounterVec
}

// New returns metrics in a new registry, together with those of the process and
// the Go runtime.
func New(version string) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: name, Help: help})
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		peers:    gauge("peers", "Peers that are used: their leases are valid, or they are retained."),
		invalid:  gauge("invalid_peers", "Peers that are rejected, because of an invalid or conflicting lease."),
		retained: gauge("retained_peers", "Peers that are retained although the store has lost their leases."),
		refused:  gauge("refused_peers", "Peers that are used, but for which the operating system refused an entry."),
		upToDate: gauge("in_step", "1 if the last pass left the network up to date, else 0."),
		pending:  gauge("config_pending", "1 if a network configuration is pending, on trial or refused, else 0."),
		lastSync: gauge("last_sync_timestamp_seconds", "Unix time of the last pass that left the network up to date."),
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "flanneld", Name: "sync_seconds",
			Help:    "Duration of passes, each of which reconciles the desired with the actual state.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "flanneld", Name: "entries",
			Help: "Desired entries in a table of the operating system."}, []string{"table"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "changes_total",
			Help: "Entries that were set, deleted, or refused by the operating system."}, []string{"table", "op"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "errors_total",
			Help: "Failed passes, by the part that failed."}, []string{"part"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: "build_info",
		Help: "1, labelled with the version.", ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	m.registry.MustRegister(m.peers, m.invalid, m.refused, m.retained, m.upToDate, m.pending, m.lastSync, m.sync,
		m.entries, m.changes, m.errors, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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

// ConfigPending sets whether the latest network configuration is pending, on
// trial or refused.
func (m *Metrics) ConfigPending(pending bool) {
	m.pending.Set(0)
	if pending {
		m.pending.Set(1)
	}
}

// Table sets the number of desired entries of a table, and counts the changes
// of one reconciliation.
func (m *Metrics) Table(name string, entries int, done reconcile.Result) {
	m.entries.WithLabelValues(name).Set(float64(entries))
	for op, n := range map[string]int{"set": done.Set, "delete": done.Deleted, "refused": done.Failed} {
		m.changes.WithLabelValues(name, op).Add(float64(n))
	}
}

// Pass records a pass: its duration, whether it left the network up to date,
// and the parts that failed.
func (m *Metrics) Pass(took time.Duration, upToDate bool, failed []string) {
	m.sync.Observe(took.Seconds())
	for _, part := range failed {
		m.errors.WithLabelValues(part).Inc()
	}
	if !upToDate {
		m.upToDate.Set(0)
		return
	}
	m.upToDate.Set(1)
	m.lastSync.SetToCurrentTime()
}
