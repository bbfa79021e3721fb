package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"flannel/pkg/daemon"
	"flannel/pkg/dataplane/system"
	"flannel/pkg/file"
	"flannel/pkg/firewall"
	"flannel/pkg/health"
	"flannel/pkg/instance"
	"flannel/pkg/logging"
	"flannel/pkg/metrics"
	"flannel/pkg/probe"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/pkg/version"
	"flannel/pkg/winnode"
	"flannel/subnet"
	"flannel/subnet/etcd"
	"flannel/subnet/kube"
	"flannel/subnet/patience"
)

// Exit codes; they are in Documentation/running.md.
const (
	exitOK    = 0 // stopped by a signal, or a command that did its work
	exitError = 1 // the lease was lost, or a part failed in a way that waiting cannot mend
	exitUsage = 2 // the command line or the environment cannot work

	exitNotWell    = 3 // status, wait, doctor, cni-conf: what was asked about is not as it shall be
	exitNotRunning = 4 // status, wait: the daemon does not run
	exitNoAnswer   = 5 // status: the daemon runs and does not answer

	exitHeld = 6 // another flanneld runs with the same subnet file
)

// run is the program without the process around it.
func run(ctx context.Context, p process) int {
	o, err := parseOptions(p.args, p.environ)
	switch {
	case err != nil:
		return p.refuse(p.args, err)
	case o.Help:
		return p.codeOf(printHelp(p.stdout))
	case o.Version:
		_, err := fmt.Fprintln(p.stdout, version.String())
		return p.codeOf(err)
	}
	log, closeLog, err := logging.New(logging.Options{Format: o.LogFormat, File: o.LogFile, Stderr: p.stderr, Events: p.events,
		Verbosity: o.Verbosity, VModule: o.VModule, LogBacktraceAt: o.LogBacktraceAt})
	if err != nil {
		return p.refuse(p.args, err)
	}
	defer closeLog() //nolint:errcheck // every line is written already
	for _, w := range o.Warnings {
		log.Warn(w)
	}
	o.Kube.APIURL = apiServer(o.Kube, log)
	if o.Command != "" {
		return runCommand(ctx, o, p, log)
	}
	return serve(ctx, o, log)
}

// waitForOther is how long a daemon that starts waits for one with the same subnet file. A service manager may start
// the next one before the last has ended. So does a DaemonSet with maxSurge: the kubelet asks the health port, where the
// old one still answers, and then ends the old one.
const waitForOther = 30 * time.Second

// heldCode is the exit code of an error of instance.Hold, else other.
func heldCode(err error, other int) int {
	if held := (*file.HeldError)(nil); errors.As(err, &held) {
		return exitHeld
	}
	return other
}

// Causes in the log.
const (
	causeLeaseLost = "lease-lost"
	causeFailed    = "failed"
)

// stopWithin bounds how long an orderly end may take after a signal, whatever the store does.
const stopWithin = 1500 * time.Millisecond

// serve runs the daemon until a signal comes or it fails.
func serve(ctx context.Context, o options, log *slog.Logger) int {
	log.Info("flanneld starts", "version", version.String())
	ended := make(chan error, 1)
	go func() { ended <- start(ctx, o, log) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(stopWithin):
			log.Warn("stopping although not every part has ended", "after", stopWithin)
		}
	}
	switch {
	case errors.Is(err, subnet.ErrLost):
		log.Error("this node's lease was revoked; its pods need new addresses, so restart it all. The network stays as it is", "cause", causeLeaseLost, "error", err)
		return exitError
	case err != nil && ctx.Err() == nil:
		log.Error("flanneld ends", "cause", causeFailed, "error", err)
		return heldCode(err, exitError)
	}
	log.Info("flanneld stops; the network stays as it is")
	return exitOK
}

// start puts the parts together and runs them. Sockets to the kernel are opened here, before any other goroutine
// could do so in another network namespace.
func start(ctx context.Context, o options, log *slog.Logger) (err error) {
	closeLater := func(close func() error) { err = errors.Join(err, close()) }
	release, err := instance.Hold(ctx, o.SubnetFile, o.Kube.PodName, log, waitForOther)
	if err != nil {
		return err
	}
	defer closeLater(release)
	counts, status, view := metrics.New(version.Version), &health.Status{}, &daemon.View{}
	plane, err := system.New(system.Options{Log: log, Instance: instance.Of(o.SubnetFile), Report: counts.Table,
		StateDir: filepath.Dir(o.SubnetFile)})
	if err != nil {
		return err
	}
	defer closeLater(plane.Close)
	rules, err := firewall.New(firewall.Options{Log: log, Instance: instance.Of(o.SubnetFile), Resync: o.Resync})
	if err != nil {
		return err
	}
	defer closeLater(rules.Close)
	link, err := newUnderlay(ctx, o.Underlay)
	if err != nil {
		return err
	}
	env, err := file.Watch(ctx, o.SubnetFile)
	if err != nil {
		return err
	}
	tasks, ctx := errgroup.WithContext(ctx)
	healthz := health.Handler(status, counts.Handler())
	if o.Healthz.Port() != 0 {
		l, err := health.Listen(o.Healthz.String())
		if err != nil {
			return err
		}
		tasks.Go(func() error { return health.Serve(ctx, l, healthz) })
	}
	var running atomic.Pointer[daemon.Daemon]
	accept := func() int {
		if d := running.Load(); d != nil {
			return d.AcceptWithdrawal()
		}
		return 0
	}
	tasks.Go(func() error { return answerStatus(ctx, o, status, view, accept, healthz, log) })
	tasks.Go(func() error { return o.CNI.Keep(ctx, log) })
	tasks.Go(func() error { return winnode.KeepVIP(ctx, o.SubnetFile, usualDataDir(), log) })
	tasks.Go(func() (err error) {
		manager, err := newManager(ctx, o, status, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, manager.Close()) }()
		d := &daemon.Daemon{
			Manager: manager, Dataplane: plane, Firewall: rules, Underlay: link, Parse: parseConfig,
			Settings: settings(o), Log: log, Status: status, View: view, Metrics: counts,
			Echo: probe.Echo, Notify: notify(log), Watchdog: watchdog(log), EnvFile: env,
		}
		running.Store(d)
		return d.Run(ctx)
	})
	err = tasks.Wait()
	notify(log)(sd.SdNotifyStopping)
	return err
}

// compareEvery is how often everything is compared though the kernel told of no change. It tells of all that matters,
// so this is for what nobody thought of, and rare: with 10,000 peers it takes some 50 ms.
const compareEvery = 5 * time.Minute

func settings(o options) daemon.Settings {
	return daemon.Settings{
		OS: runtime.GOOS, SubnetFile: o.SubnetFile, IPMasq: o.IPMasq, RandomFully: o.RandomFully,
		ForwardRules: o.ForwardRules, BlackholeOwn: o.Blackhole, CompareAll: compareEvery,
		RetainPeers: o.RetainPeers, KeepConfig: o.KeepConfig, ConfigStagger: o.Stagger,
	}
}

// manager is where leases live, and what there is to close of it.
type manager interface {
	subnet.Manager
	subnet.Accepter
	io.Closer
}

func newManager(ctx context.Context, o options, status *health.Status, log *slog.Logger) (manager, error) {
	if o.Kube.On {
		outage := patience.NewOutage(log, "the Kubernetes API")
		status.Waiting("connecting to the Kubernetes API")
		status.Explain(outage.Err)
		k := o.Kube.client()
		k.NetConf, k.SetCondition, k.Retain = o.Kube.NetConfPath, o.Kube.SetNetworkUnavailable, o.RetainPeers
		k.Log, k.Outage, k.Waiting = log, outage, status.Waiting
		return kube.New(ctx, *k)
	}
	outage := patience.NewOutage(log, "etcd")
	status.Waiting("connecting to etcd")
	status.Explain(outage.Err)
	return etcd.New(ctx, etcd.Options{
		Endpoints: o.Etcd.Endpoints, Prefix: o.Etcd.Prefix,
		CertFile: o.Etcd.CertFile, KeyFile: o.Etcd.KeyFile, CAFile: o.Etcd.CAFile,
		Username: o.Etcd.Username, Password: o.Etcd.Password.Reveal(),
		RenewMargin: o.Etcd.RenewMargin, Retain: o.RetainPeers, Log: log, Outage: outage,
	})
}

// client says how to reach the API, and as whom.
func (o *kubeOptions) client() *kube.Options {
	return &kube.Options{Kubeconfig: o.Kubeconfig, APIURL: o.APIURL, NodeName: o.NodeName, PodName: o.PodName, PodNamespace: o.PodNamespace,
		Prefix: o.AnnotationPrefix, UserAgent: "flanneld/" + version.Version}
}

// underlayOf is the machine's own daemon.Underlay.
type underlayOf struct {
	options underlay.Options
	changes <-chan struct{}
}

func newUnderlay(ctx context.Context, o underlay.Options) (underlayOf, error) {
	changes, err := underlay.Watch(ctx)
	return underlayOf{o, changes}, err
}

func (u underlayOf) Changes() <-chan struct{} { return u.changes }

func (u underlayOf) Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error) {
	o := u.options
	if operator.V4.IsValid() {
		o.PublicV4 = operator.V4
	}
	if operator.V6.IsValid() {
		o.PublicV6 = operator.V6
	}
	snapshot, err := underlay.Read(o)
	if err != nil {
		return underlay.Link{}, nil, reconcile.Unknown(err)
	}
	link, err := underlay.Choose(snapshot, o, v4, v6)
	return link, snapshot.Addrs(), err
}

// notify tells systemd, if it wants to know.
func notify(log *slog.Logger) func(string) {
	return func(state string) {
		if _, err := sd.SdNotify(false, state); err != nil {
			log.Warn("tell systemd how we are", "state", state, "error", err)
		}
	}
}

func watchdog(log *slog.Logger) time.Duration {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("read systemd's watchdog settings", "error", err)
	}
	return every
}
