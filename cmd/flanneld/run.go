package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"flannel/pkg/daemon"
	"flannel/pkg/file"
	"flannel/pkg/logging"
	"flannel/pkg/status"
	"flannel/pkg/version"
	"flannel/subnet"
	"flannel/subnet/etcd"
	"flannel/subnet/kube"
)

// Exit codes, as documented in Documentation/running.md.
const (
	exitOK    = 0 // stopped by a signal, or a command that succeeded
	exitError = 1 // the lease was lost, or an error that flanneld does not retry
	exitUsage = 2 // invalid command line or environment

	exitNotReady   = 3 // status, wait: not ready; doctor: a check failed; cni-conf: the file differs
	exitNotRunning = 4 // status, wait: the daemon is not running
	exitNoAnswer   = 5 // status: the daemon is running but does not answer

	exitHeld = 6 // another flanneld is running with the same subnet file
)

// run runs the daemon or a command and returns the exit code. main calls it, and tests
// in place of the process.
//
// What goes wrong before there is a log is printed to stderr, which for a
// service is the event log.
func run(ctx context.Context, p process) int {
	o, err := parseOptions(p.args, p.environ)
	switch {
	case err != nil:
		return p.reportUsage(p.args, err)
	case o.Help || slices.Contains(informing, o.Command): // without a log
		return runCommand(ctx, o, p, slog.New(slog.DiscardHandler))
	case o.Version:
		_, err := fmt.Fprintln(p.stdout, version.String())
		return p.reportError(err)
	}
	o.Logging.Stderr, o.Logging.Events = p.stderr, p.events
	if o.Command == "" {
		o.Logging.Recent = &logging.Recent{} // the last lines of the daemon's log, for doctor --bundle
	}
	log, closeLog, err := logging.New(o.Logging)
	switch {
	case errors.Is(err, logging.ErrFile): // it may become writable; after exitUsage systemd would not start flanneld again
		p.reportProblems(p.args, err)
		return exitError
	case err != nil:
		return p.reportUsage(p.args, err)
	}
	defer closeLog() //nolint:errcheck // every line is written already
	for _, w := range o.Warnings {
		log.Warn(w)
	}
	o.Kube.APIURL = apiServer(o.Kube, log) // from a kubeconfig of --kube-api-from, without --kube-api-url
	if o.Command != "" {
		return runCommand(ctx, o, p, log)
	}
	if text := introduction(o, p); text != "" { // for a person who has given no flags in a terminal
		fmt.Fprint(p.stderr, text) //nolint:errcheck // only a courtesy
	}
	return serve(ctx, o, log)
}

// waitForOther is how long a starting daemon waits for another one with the
// same subnet file to end. Service managers may start the new daemon before the
// old one has ended. A DaemonSet with maxSurge always does: kubelet probes the
// health port, where the old daemon still answers, and ends the old one only
// after that.
const waitForOther = 30 * time.Second

// errBeside is in the errors of call.daemonBeside.
var errBeside = errors.New("nothing was changed")

// exitCode returns exitHeld if err is from holdInstance because another
// flanneld runs, or from call.daemonBeside, else exitError.
func exitCode(err error) int {
	if _, held := errors.AsType[*file.HeldError](err); held || errors.Is(err, errBeside) {
		return exitHeld
	}
	return exitError
}

// Causes in the log.
const (
	causeLeaseLost = "lease-lost"
	causeFailed    = "failed"

	causeOwnerUnknown = "owner-unknown"
	causeManyPeers    = "many-peers"
)

// stopWithin is the longest time between a signal and the exit, even if the
// store does not answer.
const stopWithin = 1500 * time.Millisecond

// serve runs the daemon until it fails or ctx ends, and returns the exit code.
func serve(ctx context.Context, o options, log *slog.Logger) int {
	log.Info("starting flanneld", "version", version.String())
	ended := make(chan error, 1) // room for one, so that start can end after serve has returned
	go func() { ended <- start(ctx, o, log) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(stopWithin):
			log.Warn("stopping before all tasks have ended", "after", stopWithin)
		}
	}
	// An error that comes with the end of ctx is a consequence of it. That the lease is
	// lost is reported even then, because pods must be restarted.
	switch {
	case errors.Is(err, subnet.ErrLost):
		log.Error("this node's lease was revoked; restart flanneld and the pods, which need new addresses; leaving the network in place", "cause", causeLeaseLost, "error", err)
		return exitError
	case err != nil && ctx.Err() == nil:
		log.Error("flanneld failed", "cause", causeFailed, "error", err)
		return exitCode(err)
	}
	log.Info("stopping flanneld, leaving the network in place")
	return exitOK
}

// start creates all parts of the daemon and runs them, each in a goroutine, until ctx ends
// or one fails; then the others are ended, too. serve calls it on a goroutine of its own,
// which it may leave behind at the exit. Sockets to the kernel may be opened on any thread:
// no part of flanneld changes the network namespace of a thread, so all have that of the
// process (TestOneNetworkNamespace).
//
// The order of the steps matters:
//
//	lock          before anything on the node is read or changed
//	open          subscribes to notifications before the first pass reads anything, so
//	              that no change in between is missed
//	manager       in a task of its own, because it may wait for the store
//
// What was opened is closed in the reverse order, after all tasks have ended;
// the lock is the last.
func start(ctx context.Context, o options, log *slog.Logger) (err error) {
	limitGarbage()   // see memory.go
	releaseProgram() // what parsing the command line and initializing packages took
	o.OS, o.CompareAll = runtime.GOOS, compareEvery
	if o.Kube.On {
		o.ConfigSkew = kubeletSkew
	}
	release, err := holdInstance(ctx, o.SubnetFile, o.Kube.PodName, log, waitForOther)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := file.OwnerUnknown(filepath.Dir(o.SubnetFile)); err != nil {
		log.Warn("cannot check who owns the files that decide what flanneld does, trusting all of them", "cause", causeOwnerUnknown,
			"directory", filepath.Dir(o.SubnetFile), "reason", err)
	}
	d, closeAll, err := open(ctx, o, log)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return err
	}
	return runTasks(ctx, o, d, log)
}

// runTasks runs the daemon, and what answers questions about it: health port, status
// socket. These and the store are tasks beside each other, so that none waits for another.
// d has no Manager (client of the store) yet.
func runTasks(ctx context.Context, o options, d *daemon.Daemon, log *slog.Logger) error {
	tasks, ctx := errgroup.WithContext(ctx)
	healthz := status.Health(d.Board, d.Metrics.Handler())
	if o.Healthz.Port() != 0 {
		tasks.Go(func() error { return status.KeepPort(ctx, o.Healthz.String(), healthz, log) })
	}
	var running atomic.Pointer[daemon.Daemon] // nil until the manager is connected
	tasks.Go(func() error {
		accept := func() int { return running.Load().AcceptWithdrawal() } // flanneld accept-withdrawal; of a nil Daemon: 0
		return answerStatus(ctx, o, d.Board, accept, healthz, log)
	})
	tasks.Go(func() error { return process{}.keepCNI(ctx, o.CNI, "cni-plugin-to", log) }) // the zero process: it finds containerd
	tasks.Go(func() error { return keepVIP(ctx, o.SubnetFile, usualDataDir(), log) })
	tasks.Go(func() (err error) {
		manager, err := newManager(ctx, o, d.Board, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, manager.Close()) }()
		d.Manager = manager
		running.Store(d) // after its Manager is set, which accept reads on another goroutine
		return d.Run(ctx)
	})
	err := tasks.Wait()
	notify(log)(sd.SdNotifyStopping)
	return err
}

// compareEvery is the interval of full comparisons with the kernel (resyncs), in addition
// to those after notifications. There are notifications about everything that
// matters, so this is only a safety net. With 10,000 peers it takes about 50
// ms.
const compareEvery = 5 * time.Minute

// kubeletSkew is by how much later than others a kubelet may update the file of a
// ConfigMap: its sync period and the lifetime of its cache are a minute each.
const kubeletSkew = 2 * time.Minute

// manager is a subnet.Manager with the methods that only this package calls.
type manager interface {
	subnet.Manager
	io.Closer
}

// newManager makes the client of the store of leases. It does not wait for the store,
// except for etcd with a user name, where the client logs in first. Its errors are
// permanent: the daemon ends. The board explains by an outage why the daemon is not ready.
func newManager(ctx context.Context, o options, board *status.Board, log *slog.Logger) (manager, error) {
	store := "etcd"
	if o.Kube.On {
		store = "the Kubernetes API"
	}
	outage := subnet.NewOutage(log, store)
	board.Waiting("connecting to " + store)
	board.Add(status.OfStore, func(r *status.Report) {
		if err := outage.Err(); err != nil {
			r.Outage, r.OutageSince = err.Error(), outage.Since()
		}
	})
	if o.Kube.On {
		k := o.Kube.client()
		k.NetConf, k.SetCondition, k.Retain = o.Kube.NetConfPath, o.Kube.SetNetworkUnavailable, o.RetainPeers
		k.Version, k.Log, k.Outage, k.Waiting = version.Version, log, outage, board.Waiting
		return kube.New(ctx, *k)
	}
	e := o.Etcd.client()
	e.RenewMargin, e.Retain, e.Log, e.Outage = o.Etcd.RenewMargin, o.RetainPeers, log, outage
	return etcd.New(ctx, e)
}

// client returns the options of a client of etcd.
func (o *etcdOptions) client() etcd.Options {
	return etcd.Options{Endpoints: o.Endpoints, Prefix: o.Prefix, CertFile: o.CertFile, KeyFile: o.KeyFile, CAFile: o.CAFile,
		Username: o.Username, Password: o.Password}
}

// client returns the options of a client of the Kubernetes API.
func (o *kubeOptions) client() *kube.Options {
	return &kube.Options{Kubeconfig: o.Kubeconfig, APIURL: o.APIURL, NodeName: o.NodeName, PodName: o.PodName, PodNamespace: o.PodNamespace,
		Prefix: o.AnnotationPrefix, UserAgent: "flanneld/" + version.Version}
}

// notify returns a function that sends a state to systemd, if flanneld is a
// service of type notify.
func notify(log *slog.Logger) func(string) {
	return func(state string) {
		if _, err := sd.SdNotify(false, state); err != nil {
			log.Warn("cannot notify systemd", "state", state, "error", err)
		}
	}
}

// watchdog returns the interval in which systemd expects a notification
// (WatchdogSec, passed in the environment); 0: none, as without systemd.
func watchdog(log *slog.Logger) time.Duration {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("cannot read systemd's watchdog settings", "error", err)
	}
	return every
}
