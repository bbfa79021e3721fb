// Package metrics counts what the daemon does, in a Prometheus registry of its own.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"flannel/pkg/reconcile"
)

// Metrics are the daemon's own; New registers them.
type Metrics struct {
	registry *prometheus.Registry
	peers    prometheus.Gauge
	invalid  prometheus.Gauge
	retained prometheus.Gauge
	refused  prometheus.Gauge
	inStep   prometheus.Gauge
	pending  prometheus.Gauge
	lastSync prometheus.Gauge
	sync     prometheus.Histogram
	entries  *prometheus.GaugeVec
	changes  *prometheus.CounterVec
	errors   *prometheus.CounterVec
}

// New returns metrics in a new registry, together with those of the process and the Go runtime.
func New(version string) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: name, Help: help})
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		peers:    gauge("peers", "Leases of other nodes that lead to a path."),
		invalid:  gauge("invalid_peers", "Leases of other nodes that are left out because they cannot be believed."),
		retained: gauge("retained_peers", "Peers that the store lost together with many others, and that stay for a while."),
		refused:  gauge("refused_peers", "Leases of other nodes that are used, of which the system refuses an entry."),
		inStep:   gauge("in_step", "1 while the last pass left the network as it shall be."),
		pending:  gauge("config_pending", "1 while a network configuration waits to be adopted, is on trial or was refused."),
		lastSync: gauge("last_sync_timestamp_seconds", "When the network was last found or brought in step, in Unix seconds."),
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "flanneld", Name: "sync_seconds",
			Help: "Duration of a pass that compares what shall be with what is.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "flanneld", Name: "entries",
			Help: "Entries of ours that shall be in a table of the kernel."}, []string{"table"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "changes_total",
			Help: "Entries that were set, deleted, or refused by the kernel."}, []string{"table", "op"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "flanneld", Name: "errors_total",
			Help: "Passes that failed, by the part that did."}, []string{"part"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: "build_info", Help: "1, labelled with the version.",
		ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	m.registry.MustRegister(m.peers, m.invalid, m.refused, m.retained, m.inStep, m.pending, m.lastSync, m.sync, m.entries, m.changes, m.errors, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the registry.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Peers counts peers. Refused and Retained are among Used.
type Peers struct {
	Used     int
	Invalid  int // left out
	Refused  int // of which the system refuses an entry
	Retained int // that the store no longer has
}

// Peers sets how many peers there are.
func (m *Metrics) Peers(p Peers) {
	m.peers.Set(float64(p.Used))
	m.invalid.Set(float64(p.Invalid))
	m.refused.Set(float64(p.Refused))
	m.retained.Set(float64(p.Retained))
}

// ConfigPending sets whether the network configuration that was offered last is not in force for good.
func (m *Metrics) ConfigPending(is bool) {
	m.pending.Set(0)
	if is {
		m.pending.Set(1)
	}
}

// Table takes what was done to a table, and how many entries of ours it shall hold.
func (m *Metrics) Table(name string, entries int, done reconcile.Result) {
	m.entries.WithLabelValues(name).Set(float64(entries))
	for op, n := range map[string]int{"set": done.Set, "delete": done.Deleted, "refused": done.Failed} {
		m.changes.WithLabelValues(name, op).Add(float64(n))
	}
}

// Pass takes the outcome of a pass: its duration, whether it left the network in step, and the parts that failed.
func (m *Metrics) Pass(took time.Duration, inStep bool, failed []string) {
	m.sync.Observe(took.Seconds())
	for _, part := range failed {
		m.errors.WithLabelValues(part).Inc()
	}
	if !inStep {
		m.inStep.Set(0)
		return
	}
	m.inStep.Set(1)
	m.lastSync.SetToCurrentTime()
}
