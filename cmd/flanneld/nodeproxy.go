package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/node"
)

// proxyRun is a kube-proxy for this node's network, for the command node kube-proxy.
// node start only uses its flags. One goroutine uses it.
type proxyRun struct {
	*call
	kubeProxy, kubeConfig, nodeName string // kubeProxy is the program
	gates                           string // feature gates

	minor  int            // of kube-proxy's version, 34 of 1.34; 0: flags was not called yet
	keeper node.VIPKeeper // likewise; open until the process ends
	warned reconcile.Once // of SourceVIP.Warning
}

// flags returns kube-proxy's flags for this node's network and its HNS. It reserves the
// source VIP if the network needs one, and waits a minute for the daemon to create the
// network.
func (r *proxyRun) flags(ctx context.Context) ([]string, error) {
	if r.minor == 0 {
		out, err := exec.CommandContext(ctx, r.kubeProxy, "--version").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --version: %w", r.kubeProxy, err)
		}
		if r.minor, err = node.ParseKubeMinor(strings.TrimSpace(string(out))); err != nil {
			return nil, fmt.Errorf("%s --version: %w", r.kubeProxy, err)
		}
		if r.keeper, err = node.OpenVIP(r.SubnetFile, usualDataDir(), r.log); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	proxy := node.KubeProxy{Minor: r.minor, Gates: strings.FieldsFunc(r.gates, func(c rune) bool { return c == ',' })}
	reserved, _, err := node.ReserveVIP(ctx, r.keeper, r.SubnetFile, proxy) // _: the same as text for a person
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's flags: %w", err)
	}
	if warning := reserved.Warning; r.warned.Due(warning, time.Now()) && warning != nil { // nil: it is over
		r.log.Warn("could not do all for the source VIP", "error", warning)
	}
	return append(r.own(), reserved.Flags...), nil
}

// own returns the flags that do not depend on the network. Without --hostname-override,
// kube-proxy takes local endpoints for remote ones, and deletes them.
func (r *proxyRun) own() []string {
	return []string{"--v=2", "--proxy-mode=kernelspace", "--hostname-override=" + r.nodeName, "--kubeconfig=" + r.kubeConfig}
}

// proxyNode is the command node kube-proxy: it declares the flags, and what it returns runs
// when they are parsed.
func proxyNode(c *call) func(context.Context) int {
	r := &proxyRun{call: c}
	c.flags.StringVar(&r.kubeConfig, "kube-config", "", "kubeconfig `file` of kube-proxy")
	c.flags.StringVar(&r.nodeName, "node-name", "", "`name` of the Node; default: the variable NODE_NAME")
	c.flags.StringVar(&r.gates, "feature-gates", "", "feature `gates` of kube-proxy")
	c.flags.StringVar(&r.kubeProxy, "kube-proxy", "", "the `program`; default: kube-proxy.exe beside flanneld.exe")
	port := c.flags.Int("health-port", 0, "`port` at which flanneld on this node answers /readyz; default: ask it at the socket beside the subnet file, as wait does")
	timeout := c.limitFlag("timeout", 15*time.Minute, "how long to wait until flanneld is ready")
	return func(ctx context.Context) int {
		r.nodeName = cmp.Or(r.nodeName, c.Kube.NodeName)
		switch {
		case r.kubeConfig == "":
			return c.reportUsage(errors.New("node kube-proxy: --kube-config is missing"))
		case r.nodeName == "":
			return c.reportUsage(errors.New("node kube-proxy: NODE_NAME is not set: it must be the name of this node"))
		}
		code, err := r.run(ctx, *port, *timeout)
		if err != nil {
			return c.reportError(fmt.Errorf("node kube-proxy: %w", err))
		}
		return code
	}
}

// run waits for flanneld, which it asks at the port, or at the status socket if that is 0, and
// runs kube-proxy until it ends.
func (r *proxyRun) run(ctx context.Context, port int, timeout time.Duration) (code int, err error) {
	if r.kubeProxy == "" {
		program, err := os.Executable()
		if err != nil {
			return 0, err
		}
		r.kubeProxy = filepath.Join(filepath.Dir(program), "kube-proxy.exe")
	}
	r.kubeConfig = file.Mounted(variable(r.environ, file.SandboxMount), r.kubeConfig) // where a HostProcess container has its volumes
	wait := []string{"wait", "--timeout=" + timeout.String()}
	if port != 0 {
		wait = append(localHealth(port), wait...)
	}
	if err := r.flanneld(ctx, nil, wait...); err != nil {
		return 0, err
	}
	for {
		flags, err := r.flags(ctx)
		if err != nil {
			return 0, err
		}
		code, stale, err := r.runUntilStale(ctx, flags) // stale: it was ended, since it should have other flags
		if err != nil || !stale {
			return code, err
		}
		r.say("the flags changed, restarting kube-proxy")
	}
}

// checkFlags is how often the flags of a running kube-proxy are compared with what they
// should be.
const checkFlags = 10 * time.Second

// runUntilStale runs kube-proxy until it ends, ctx ends, or it should have other flags.
func (r *proxyRun) runUntilStale(ctx context.Context, flags []string) (code int, stale bool, err error) {
	r.say("kube-proxy " + quoted(flags))
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	cmd := exec.CommandContext(ctx, r.kubeProxy, flags...)
	cmd.Stdout, cmd.Stderr = r.stdout, r.stderr
	if err := cmd.Start(); err != nil {
		return 0, false, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended, cmd.ProcessState says
		close(ended)
	}()
	for reconcile.Wait(ctx, time.Now().Add(checkFlags), ended) < 0 && ctx.Err() == nil {
		now, err := r.flags(ctx)
		if err != nil {
			r.log.Warn("cannot compare kube-proxy's flags", "error", err) // flanneld may be starting
		} else if !slices.Equal(now, flags) {
			kill()
			<-ended
			return 0, true, nil
		}
	}
	<-ended // with ctx at the latest
	return cmd.ProcessState.ExitCode(), false, ctx.Err()
}
