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
	"flannel/pkg/dataplane"
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

// process is what the program was started with.
type process struct {
	args, environ  []string // without the program's name; as of os.Environ
	stdout, stderr io.Writer
	events         slog.Handler // of a Windows service, which has no stderr; else nil
	confine        func() error // gives up the use of the network for good; nil where others share the process
}

func (p process) giveUpNetwork() error {
	if p.confine == nil {
		return nil
	}
	return p.confine()
}

// run is the program without the process around it.
func run(ctx context.Context, p process) int {
	o, err := parseOptions(p.args, p.environ)
	switch {
	case err != nil:
		return refuse(p.args, err, p.stdout, p.stderr)
	case o.Help:
		return codeOf(printHelp(p.stdout), p.stderr)
	case o.Version:
		_, err := fmt.Fprintln(p.stdout, version.String())
		return codeOf(err, p.stderr)
	}
	log, closeLog, err := logging.New(logging.Options{Format: o.LogFormat, File: o.LogFile, Stderr: p.stderr, Events: p.events,
		Verbosity: o.Verbosity, VModule: o.VModule, LogBacktraceAt: o.LogBacktraceAt})
	if err != nil {
		return refuse(p.args, err, p.stdout, p.stderr)
	}
	defer closeLog() //nolint:errcheck // every line is written already
	for _, w := range o.Warnings {
		log.Warn(w)
	}
	o.Kube.APIURL = apiServer(o.Kube, log)
	switch o.Command {
	case "handback":
		return handback(ctx, o, log, p.stdout, p.stderr)
	case "cleanup":
		return cleanup(ctx, o, log, p.stdout, p.stderr)
	case "install-cni":
		return installCNI(ctx, o, p, log)
	case "prepare":
		return prepare(ctx, o, log, p.stdout, p.stderr)
	case "source-vip":
		return sourceVIP(ctx, o, log, p.stdout, p.stderr)
	case "service":
		return answerService(ctx, o, log, p.stdout, p.stderr)
	case "status":
		return showStatus(ctx, o, p.stdout, p.stderr)
	case "accept-withdrawal":
		return acceptWithdrawal(ctx, o, p.stdout, p.stderr)
	case "doctor":
		return examine(ctx, o, p.stdout, p.stderr)
	case "cni-conf":
		return makeCNIConf(ctx, o, log, p.stdout, p.stderr)
	case "net-conf":
		return makeNetConf(o, p.stdout, p.stderr)
	case "wait":
		return wait(ctx, o, p.stdout, p.stderr)
	}
	return serve(ctx, o, log)
}

// codeOf tells an error, if there is one, and is the exit code that goes with it.
func codeOf(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "flanneld:", err) //nolint:errcheck // there is no other way to tell
	return exitError
}

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
		log.Error("this node's lease was revoked; its pods need new addresses, so restart it all. The network stays as it is", "error", err)
		return exitError
	case err != nil && ctx.Err() == nil:
		log.Error("flanneld ends", "error", err)
		return heldCode(err, exitError)
	}
	log.Info("flanneld stops; the network stays as it is")
	return exitOK
}

// start puts the parts together and runs them. Sockets to the kernel are opened here, before any other goroutine
// could do so in another network namespace.
func start(ctx context.Context, o options, log *slog.Logger) (err error) {
	closeLater := func(close func() error) { err = errors.Join(err, close()) }
	release, err := holdNode(ctx, o, log, waitForOther)
	if err != nil {
		return err
	}
	defer closeLater(release)
	counts, status, view := metrics.New(version.Version), &health.Status{}, &daemon.View{}
	plane, err := dataplane.New(dataplane.Options{Log: log, Instance: instance.Of(o.SubnetFile), Report: counts.Table,
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
	tasks.Go(func() error { return keepSourceVIP(ctx, o, log) })
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
		return kube.New(ctx, kube.Options{
			Kubeconfig: o.Kube.Kubeconfig, APIURL: o.Kube.APIURL,
			NodeName: o.Kube.NodeName, PodName: o.Kube.PodName, PodNamespace: o.Kube.PodNamespace,
			Prefix: o.Kube.AnnotationPrefix, NetConf: o.Kube.NetConfPath,
			SetCondition: o.Kube.SetNetworkUnavailable,
			Retain:       o.RetainPeers, UserAgent: "flanneld/" + version.Version, Log: log, Outage: outage, Waiting: status.Waiting,
		})
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
