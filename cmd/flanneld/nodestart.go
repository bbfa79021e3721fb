package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/logging"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/service"
)

// nodeStart is one run of node start, or one try with --retry. The steps of start run one
// after another, on one goroutine.
type nodeStart struct {
	*call        // of node start; flags are its own
	nodeSettings // of the flags, completed by those of the last start

	// Pointers to the values of flags, which startNode has declared.
	baseDir *string        // --base-dir, such as C:\k
	timeout *time.Duration // of prepare, and of wait
	force   *bool          // overwrite an edited CNI configuration

	components service.Components // kubelet, flanneld and kube-proxy
	program    string             // path of this flanneld.exe
	proxy      []string           // flags of kube-proxy, from the step proxyFlags
}

// startNode is the command node start: it declares the flags, and what it returns runs when
// they are parsed.
func startNode(c *call) func(context.Context) int {
	var settings nodeSettings
	settings.declare(c.flags)
	baseDir := c.baseDirFlag()
	timeout := c.limitFlag("timeout", 15*time.Minute, "how long to wait for the adapter, and for flanneld to be ready")
	force := c.flags.Bool("force", false, "overwrite a CNI configuration that somebody edited")
	services := c.flags.Bool("services", false, "run the components as services from now on, after a node start that succeeded")
	retry := c.flags.Bool("retry", false, "try again every minute until it succeeds, with the output in node-start's log: for a task that starts with the system")
	once := func(ctx context.Context) error { // called when settings has the values of the flags
		n := &nodeStart{call: c, nodeSettings: settings, baseDir: baseDir, timeout: timeout, force: force}
		return n.start(ctx, *services)
	}
	return c.nodeTask("start", baseDir, func(ctx context.Context) error {
		if *retry {
			return c.untilStarted(ctx, *baseDir, once)
		}
		return once(ctx)
	})
}

// retryNode is the time between two tries of node start --retry.
const retryNode = time.Minute

// untilStarted calls once until it succeeds, with the settings of the last node start. The
// output goes to a file, because nobody sees that of a task.
func (c *call) untilStarted(ctx context.Context, baseDir string, once func(context.Context) error) error {
	var last nodeSettings
	kept, err := lastSettings(baseDir)
	if err != nil {
		return err
	} else if kept == nil {
		return flagMistake{fmt.Errorf("%s is missing: run node start without --retry first", filepath.Join(baseDir, settingsName))}
	}
	if err := last.take(kept); err != nil {
		return err
	}
	log, err := logging.OpenFile(filepath.Join(last.LogDir, "flannel-node.log"))
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // every line is written already
	c.stdout, c.stderr = log, log
	c.say("node start --retry")
	if err := c.components(baseDir, last).Record(boot); err != nil {
		return err
	}
	for {
		err := once(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		c.say(fmt.Sprintf("failed, will try again in %v: %v", retryNode, err))
		reconcile.Pause(ctx, retryNode)
	}
}

// start takes the steps of Documentation/windows-quickstart.md. The adapter loses its
// addresses before anything depends on the network, and kube-proxy is last, because its
// flags depend on the network. Each step may run again: what is in place stays.
func (n *nodeStart) start(ctx context.Context, asServices bool) (err error) {
	if err := n.complete(n.flags, *n.baseDir); err != nil {
		return err
	}
	if !n.flags.Changed("node-name") {
		if host, err := nodeOfHost(); err != nil {
			return err
		} else if host != n.NodeName { // a kubelet that others installed may register the host's
			n.say(fmt.Sprintf("keeps the node name %s of the last run; --node-name=%s changes it", n.NodeName, host))
		}
	}
	if n.program, err = os.Executable(); err != nil {
		return err
	}
	n.components = n.call.components(*n.baseDir, n.nodeSettings)
	if err := n.chooseServices(ctx, asServices); err != nil {
		return err
	}
	if err := n.keep(*n.baseDir); err != nil { // for --retry, and the other commands below node
		return err
	}
	steps := []struct {
		text string
		do   func(context.Context) error
	}{
		{"directories and files", n.files},
		{"the adapter's virtual switch: the network may be down for half a minute, and remote sessions may end", n.bind},
		{"CNI configuration", n.cniConf},
		{"kubelet, which registers the node", n.startKubelet},
		{"flanneld", n.startDaemon},
		{"kube-proxy's source VIP and other flags", n.proxyFlags},
		{"kube-proxy", n.startProxy},
		{"status", n.showStatus},
	}
	for i, step := range steps {
		n.say(fmt.Sprintf("%d/%d %s", i+1, len(steps), step.text))
		if err := step.do(ctx); err != nil {
			n.diagnose(ctx)
			return fmt.Errorf("step %d: %w; fix it, and run this command again", i+1, err)
		}
	}
	n.say(n.NodeName + " is a node of the pod network")
	return nil
}

// chooseServices sets Services if the components are to be services from now on, or are
// services already: the settings that say so may have been lost, but not the service of kubelet.
// It does not replace a service flanneld of another tool.
func (n *nodeStart) chooseServices(ctx context.Context, asServices bool) (err error) {
	if !n.Services {
		n.Services, err = n.components.HasService(kubelet)
	}
	if err != nil || !n.Services && !asServices {
		return err
	}
	switch exists, own, err := daemonService(); {
	case err != nil:
		return err
	case exists && !own:
		return fmt.Errorf("another tool created the service %s, such as nssm; remove it, such as by nssm remove %[1]s confirm, and run this command again", service.Name)
	case n.Services:
		return nil
	}
	n.Services = true
	return n.stopComponents(ctx, *n.baseDir) // which run as processes until now
}

// diagnose prints what the doctor finds after a failed step. A directory that is "" is then
// that of containerd.
func (n *nodeStart) diagnose(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	n.say("failed; results of flanneld doctor:")
	// It fails if a check does.
	_ = n.run(ctx, append(n.kube(), "doctor", "-v", "--cni-conf-dir="+n.CNIConfDir, "--cni-bin-dir="+n.CNIBinDir)...)
}

// run runs a command of flanneld in this process, with NODE_NAME set, and says it before.
func (n *nodeStart) run(ctx context.Context, args ...string) error {
	return n.flanneld(ctx, []string{"NODE_NAME=" + n.NodeName}, args...)
}

// kube are the daemon's flags for the store.
func (n *nodeStart) kube() []string {
	return []string{"--kube-subnet-mgr", "--kubeconfig-file=" + n.KubeConfig, "--net-config-path=" + n.NetConf}
}

// iface are the daemon's flags for the adapter. The address comes first; the name is for
// the time in which the adapter has no address.
func (n *nodeStart) iface() []string {
	return []string{"--iface=" + n.ManagementIP, "--iface=" + n.InterfaceName}
}

// localHealth are the daemon's flags for its answers to this node.
func localHealth(port int) []string {
	return []string{"--healthz-ip=127.0.0.1", fmt.Sprintf("--healthz-port=%d", port)}
}

// base returns the path of a file in the base directory.
func (n *nodeStart) base(name string) string { return filepath.Join(*n.baseDir, name) }

// isDir reports whether a path is that of a directory.
func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// needFile returns an error if a file is missing.
func needFile(path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && isDir(path) {
		return fmt.Errorf("%s is missing; see windows-quickstart.md for the files that are needed", path)
	}
	return err
}

// files looks for the files that are needed, creates directories, installs the CNI
// plugins, and writes the network configuration if there is none.
func (n *nodeStart) files(ctx context.Context) error {
	if err := errors.Join(needFile(n.base("kube-proxy.exe")), needFile(n.KubeConfig)); err != nil {
		return err
	}
	if n.CNIBinDir == "" || n.CNIConfDir == "" {
		dirs := n.cniDirs()
		if dirs.err != nil {
			return fmt.Errorf("%w; or set --cni-bin-dir and --cni-conf-dir", dirs.err)
		}
		n.CNIBinDir, n.CNIConfDir = cmp.Or(n.CNIBinDir, dirs.Bin), cmp.Or(n.CNIConfDir, dirs.Conf)
	}
	for _, dir := range []string{n.LogDir, n.CNIBinDir, n.CNIConfDir} {
		if err := file.MkdirAll(dir); err != nil {
			return err
		}
	}
	if plugins := n.base("cni"); isDir(plugins) {
		if err := n.run(ctx, "install-cni", "--plugin-from="+plugins, "--plugin-to="+n.CNIBinDir); err != nil {
			return err
		}
	}
	return n.run(ctx, append(n.kube(), "net-conf", "--network-mode="+n.NetworkMode, "--cluster-cidr="+n.ClusterCIDR)...)
}

// bind creates the adapter's virtual switch. A daemon that runs does it itself.
func (n *nodeStart) bind(ctx context.Context) error {
	runs, err := n.components.Running(service.Name)
	if err != nil {
		return err
	}
	if runs {
		n.say("skipped, because flanneld runs already and does it itself")
		return nil
	}
	return n.run(ctx, append(append(n.kube(), n.iface()...), "prepare", "--timeout="+n.timeout.String())...)
}

// cniConf writes the CNI configuration. One that somebody edited stays without --force.
func (n *nodeStart) cniConf(ctx context.Context) error {
	edited := "--keep"
	if *n.force {
		edited = "--force"
	}
	return n.run(ctx, append(n.kube(), "cni-conf", "--to="+filepath.Join(n.CNIConfDir, cniConfName), "--plugin-dir="+n.CNIBinDir,
		"--service-cidr="+n.ServiceCIDR, "--dns="+n.KubeDNSServiceIP, "--dns-search=svc.cluster.local", "--management-ip="+n.ManagementIP, edited)...)
}

// cniConfName is the file of the CNI configuration.
const cniConfName = "10-flannel.conf"

// startKubelet starts kubelet, with the configuration of --kubelet-config if there is such a
// file, else with one that it writes.
func (n *nodeStart) startKubelet(ctx context.Context) error {
	config := n.KubeletConfig
	raw, err := os.ReadFile(config)
	if needFile(config) != nil {
		config = n.base(kubeletConfigName)
		if raw, err = kubeletConfig(n.nodeSettings); err != nil {
			return err
		}
		changed, err := file.Put(config, raw, 0o644)
		if err != nil {
			return err
		}
		if changed { // a running kubelet has read the former file
			if err := n.components.Stop(ctx, kubelet); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	flags := append(kubeletFlags(n.nodeSettings, config), runtimeFlag(raw, n.ContainerRuntimeEndpoint)...)
	return n.components.Start(ctx, service.Component{Name: kubelet, Program: n.base("kubelet.exe"), Args: flags}, n.Services)
}

// startDaemon starts flanneld, and waits until it is ready.
func (n *nodeStart) startDaemon(ctx context.Context) error {
	flags := append(append(append(n.kube(), n.iface()...), localHealth(n.HealthPort)...), "--ip-masq")
	name := "NODE_NAME=" + n.NodeName
	var err error
	if n.Services {
		// An earlier node start may have left a process. Components did not create the service of flanneld, so Stop
		// leaves the service running.
		if err := n.components.Stop(ctx, service.Name); err != nil {
			return err
		}
		err = n.run(ctx, append(append([]string{"service", "install", "--start", "--env", name, "--"}, flags...), "--log-file="+filepath.Join(n.LogDir, "flanneld.log"))...)
	} else {
		asService := false
		err = n.components.Start(ctx, service.Component{Name: service.Name, Program: n.program, Args: flags, Env: []string{name}, Other: n.noDaemon}, asService)
	}
	if err != nil {
		return err
	}
	return n.run(ctx, append(localHealth(n.HealthPort), "wait", "--timeout="+n.timeout.String(), "--silence=1m")...)
}

// noDaemon returns an error if a daemon runs that node start did not start; Components asks it
// before it starts one (Component.Other). The name of the process does not tell, since other
// commands, such as this one, have the same.
func (n *nodeStart) noDaemon() error {
	release, err := holdInstance(context.Background(), n.SubnetFile, "", n.log, 0) // 0: do not wait
	if err != nil {
		return err
	}
	return release()
}

// proxyFlags makes the flags of kube-proxy, as node kube-proxy does, and prints them. It waits
// for the source VIP, which flanneld reserves.
func (n *nodeStart) proxyFlags(ctx context.Context) (err error) {
	proxy := proxyRun{call: n.call, kubeProxy: n.base("kube-proxy.exe"), kubeConfig: n.KubeConfig, nodeName: n.NodeName, gates: n.KubeProxyFeatureGates}
	if n.proxy, err = proxy.flags(ctx); err == nil {
		n.say(quoted(n.proxy))
	}
	return err
}

// startProxy starts kube-proxy.
func (n *nodeStart) startProxy(ctx context.Context) error {
	// Manual: when the system starts, the source VIP in these flags may be an old one. A task
	// runs node start --retry then.
	return n.components.Start(ctx, service.Component{Name: kubeProxy, Program: n.base("kube-proxy.exe"), Args: n.proxy, Manual: true}, n.Services)
}

// showStatus prints the daemon's state. That it cannot be asked is no failure: Windows
// has Unix sockets since Server 2019.
func (n *nodeStart) showStatus(ctx context.Context) error {
	_ = n.run(ctx, "status") // what it prints says why it fails
	return ctx.Err()
}
