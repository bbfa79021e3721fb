package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"

	"flannel/pkg/daemon"
	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/extension"
	"flannel/pkg/file"
	"flannel/pkg/firewall"
	"flannel/pkg/probe/path"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/pkg/status/metrics"
	"flannel/pkg/version"
	"flannel/subnet"
)

// open returns the daemon without its Manager, for start. It opens what the daemon reads and
// changes on this node, and subscribes to notifications of all of that. The caller must call
// closeAll, also after an error: it closes what was opened, in the reverse order. What each
// field and option is for is said at its type.
func open(ctx context.Context, o options, log *slog.Logger) (d *daemon.Daemon, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() (err error) {
		for _, close := range slices.Backward(closers) {
			err = errors.Join(err, close())
		}
		return err
	}
	// The board collects what /readyz, /metrics and the status socket show, and tally what a
	// pass has changed, for the log.
	board, tally := &status.Board{}, &reconcile.Tally{}
	o.addProcess(board)
	counts := metrics.New(board, version.Version, version.Commit, onTooManyPeers(o, log))
	// With a subnet file this is a restart: the network of the run before still works, and
	// /startupz says so at once.
	if env, err := subnet.ReadEnv(o.SubnetFile); err == nil && !env.IsZero() {
		board.Resumed()
	}
	plane, err := newPlane(o, log, counts, tally)
	if err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, plane.Close)
	daemon.AddDataplane(board, plane)
	rules, err := openFirewall(firewall.Options{Log: log, Instance: instanceOf(o.SubnetFile), Resync: o.FirewallResync,
		Repaired: func() { counts.Repaired("firewall", 1) }})
	if err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, rules.Close)
	// What watches interfaces and files ends with ctx, and needs no closer.
	interfaces, err := newUnderlay(ctx, o.Underlay, log)
	if err != nil {
		return nil, closeAll, err
	}
	subnetFileChanges, err := file.Watch(ctx, o.SubnetFile)
	if err != nil {
		return nil, closeAll, err
	}
	probes, closeProbes := newProber(o, log, board, counts) // nil: peers are not probed
	closers = append(closers, closeProbes)
	// leanDataplane and returningMemory return to the system what the start took (memory.go).
	// notify and watchdog are for systemd (run.go).
	return &daemon.Daemon{
		Dataplane: &leanDataplane{Dataplane: plane, release: releaseProgram, returnAll: returnMemory}, Firewall: rules, Underlay: interfaces, Parse: o.parseConfig,
		Settings: o.Settings, Log: log, Board: board, Metrics: counts, Tally: tally, Probes: probes,
		Echo: path.Echo, Notify: returningMemory(notify(log)), Watchdog: watchdog(log), EnvFile: subnetFileChanges,
	}, closeAll, nil
}

// newPlane opens the dataplane. What its tables change is counted for metrics, and in
// tally for the log. The caller closes it.
func newPlane(o options, log *slog.Logger, counts *metrics.Metrics, tally *reconcile.Tally) (dataplane.Dataplane, error) {
	report := func(table string, entries int, done reconcile.Result) {
		counts.Table(table, entries, done)
		tally.Add(table, done)
	}
	return openPlane(dataplane.Options{Log: log, Instance: instanceOf(o.SubnetFile), Report: report,
		Repairs: dataplane.NewRepairs(log, counts.Repaired), StateDir: filepath.Dir(o.SubnetFile), PodResults: podResults(), KeyFile: o.WireGuardKey, Tunnels: counts.Tunnels})
}

// openPlane opens the driver of this system, in a Dataplane that runs the commands of the
// backend extension and passes everything else on to the driver. The caller closes it.
func openPlane(o dataplane.Options) (dataplane.Dataplane, error) {
	d, err := openDriver(o)
	if err != nil {
		return nil, err
	}
	return extension.New(d, o), nil
}

// rulesWriter is a daemon.Firewall that must be closed, which leaves the rules.
type rulesWriter interface {
	daemon.Firewall
	io.Closer
}
