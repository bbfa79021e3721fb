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
	"flannel/pkg/status"
)

// Metrics are the daemon's metrics. Make them with New. Any goroutine may call the methods.
// What the Board reports is in reported.go; the fields here count what happens: passes
// (Pass), tables of the dataplane (Table), repairs (Repaired), WireGuard (Tunnels), and
// probes (ProbeRTT).
type Metrics struct {
	registry *prometheus.Registry
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

// New returns metrics in a new registry: those that show what b reports, those that
// the methods count, those of the process and the Go runtime, and one labelled with the
// version and the commit of the program. With tooMany (not nil), there are metrics of each
// peer; if more than MaxPeers are probed, there are none, and each scrape calls tooMany.
func New(b *status.Board, version, commit string, tooMany func()) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	register := promauto.With(m.registry)
	m.lastSync = register.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: "last_sync_timestamp_seconds",
		Help: "Unix time of the last pass that left the network up to date."})
	m.sync = register.NewHistogram(prometheus.HistogramOpts{Namespace: "flanneld", Name: "sync_seconds",
		Help:    "Duration of passes, each of which reconciles the desired with the actual state.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}) // 0.1 ms to 6.6 s
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
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}) // 0.1 ms to 1.6 s
	register.NewGauge(prometheus.GaugeOpts{Namespace: "flanneld", Name: "build_info",
		Help:        "1, labelled with what was built.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "goversion": runtime.Version()}}).Set(1)
	m.registry.MustRegister(newReported(b, tooMany), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the registry. It does not compress: that takes 0.8 MB, which are kept from
// one scrape to the next.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
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

// ProbeRTT counts an answer to a probe.
func (m *Metrics) ProbeRTT(took time.Duration) { m.rtt.Observe(took.Seconds()) }

// Pass records a pass: its duration, whether it left the network up to date,
// and the parts that failed.
func (m *Metrics) Pass(took time.Duration, upToDate bool, failed []string) {
	m.sync.Observe(took.Seconds())
	for _, part := range failed {
		m.errors.WithLabelValues(part).Inc()
	}
	if upToDate {
		m.lastSync.SetToCurrentTime()
	}
}
