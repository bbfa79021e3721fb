package main

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/status"
	"flannel/pkg/status/metrics"
)

// probeConn is a socket by which peers are probed.
type probeConn interface {
	reach.Conn
	io.Closer
}

// newProber opens the prober. It is nil if the operator wants none, if the system has none,
// or if there is no permission for it. The caller must call close.
func newProber(o options, log *slog.Logger, board *status.Board, counts *metrics.Metrics) (p *reach.Prober, close func() error) {
	close = func() error { return nil }
	if !o.Probe {
		return nil, close
	}
	conn, err := openProbes()
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			reach.Unavailable(log, err)
		}
		return nil, close
	}
	p = reach.New(conn, reach.Options{Log: log, RTT: counts.ProbeRTT})
	board.Add(status.OfProbes, func(r *status.Report) { r.Probes = new(p.Summary()) })
	return p, conn.Close
}

// onTooManyPeers returns what each scrape calls if there are too many peers for metrics of
// each: it warns once. nil: the operator wants no metrics of each peer.
func onTooManyPeers(o options, log *slog.Logger) func() {
	if !o.PeerMetrics {
		return nil
	}
	return sync.OnceFunc(func() {
		log.Warn("too many peers for metrics of each, see --peer-metrics; those of all peers together remain", "cause", causeManyPeers, "most", metrics.MaxPeers)
	})
}
