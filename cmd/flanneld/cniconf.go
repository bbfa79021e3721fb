package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"flannel/pkg/cni/conflist"
	"flannel/pkg/conf"
	"flannel/pkg/probe"
	"flannel/pkg/windows/node"
	"flannel/subnet/kube"
)

// cniConfAnswer is the JSON document of cni-conf.
type cniConfAnswer struct {
	conflist.Outcome
	Problem string `json:"problem,omitempty"`
}

const aboutCNIConf = `Writes the CNI configuration of a Windows node. The defaults for plugin, HNS network, pod networks and
MAC prefix come from the network configuration, which is read from the same place as the daemon reads it.

A file that an earlier cni-conf wrote is replaced. A file that was edited since, or written by hand, is
not replaced: cni-conf shows the difference and exits with status 3. --force overwrites it.

Before it writes a file, cni-conf creates an endpoint flanneld-trial in HNS and deletes it, to see which policies HNS
accepts for pods. It leaves loopbackDSR and the default of --encap-overhead out if HNS refuses them. Nothing is tried
with --to=-, nor again while the file stays as it is; --force tries again.`

// specFlags declares the flags that set fields of s.
func (c *call) specFlags(s *conflist.Spec) {
	c.flags.StringVar(&s.Plugin, "plugin", "", "`one` of "+strings.Join(conflist.Plugins(), ", ")+"; default: win-overlay or win-bridge, as the backend needs")
	c.flags.IntVar(&s.API, "api-version", 2, "version of the HNS API: 1 for dockershim, 2 for containerd")
	c.flags.StringVar(&s.Network, "network-name", "", "`name` of the HNS network; default: as the backend names it")
	c.flags.Func("cluster-cidr", "pod `network`; default: as in the network configuration", conf.ListOf(&s.Cluster, conf.ParseNetwork))
	c.flags.Func("service-cidr", "`network` of Services; default: read from the cluster (needs a kubeconfig with the permission)", conf.ListOf(&s.Services, conf.ParseNetwork))
	c.flags.Func("management-cidr", "`network` of the nodes, which pods on an L2Bridge reach without NAT; default: that of the node's address", conf.ListOf(&s.Management, conf.ParseNetwork))
	c.flags.Func("nat-exception", "another `network` that pods reach without NAT", conf.ListOf(&s.NATExceptions, conf.ParseNetwork))
	c.flags.Func("dns", "`address` of the cluster's DNS; default: kubelet sets it for each pod", conf.ListOf(&s.DNS, conf.ParseAddress))
	c.flags.Func("dns-search", "`domain` to search names in, such as svc.cluster.local", conf.ListOf(&s.Search, func(t string) (string, error) { return t, nil }))
	c.flags.Func("management-ip", "the node's own `address`, at most one of each family; default: as the daemon chooses it", func(text string) error {
		ip, err := conf.ParseAddress(text)
		if ip.Is6() {
			s.ManagementIP6 = ip
		} else {
			s.ManagementIP = ip
		}
		return err
	})
	c.flags.BoolVar(&s.LoopbackDSR, "loopback-dsr", true, "let a pod reach itself through a Service, if HNS has direct server return and no kube-proxy runs without it")
	c.flags.IntVar(&s.EncapOverhead, "encap-overhead", -1, "`bytes` that HNS subtracts from 1500 for the MTU of pods, 0 for its default; default: 1550 less the MTU of the node's adapter if that is below 1500")
	c.flags.StringVar(&s.MACPrefix, "mac-prefix", "", "first `bytes` of pods' MAC addresses in an overlay; default: Backend.MacPrefix, else 0E-2A")
}

// makeCNIConf is the command cni-conf (see aboutCNIConf). It declares the flags, and
// returns what runs after these are parsed, with the exit code.
func makeCNIConf(c *call) func(context.Context) int {
	var spec conflist.Spec
	c.specFlags(&spec)
	to := c.flags.String("to", "", "`file` to write, a .conf or a .conflist; - prints it instead; default: 10-flannel.conf where containerd looks, see cni-dirs")
	pluginDir := c.flags.String("plugin-dir", "", "`directory` that must contain the plugins; default: that of containerd, which is only warned of")
	force := c.flags.Bool("force", false, "overwrite a file that was edited, and try again which policies HNS accepts for pods")
	keep := c.flags.Bool("keep", false, "exit with status 0 if an edited file is left unchanged")
	within := c.limitFlag("timeout", 3*time.Second, "how long to wait for etcd and the API server")
	c.jsonFlag("print what was done as one JSON document: path, result, diff, conf, problem")
	return func(ctx context.Context) int {
		dirs := c.cniDirs()
		if err := dirs.required("to"); *to == "" && err != nil {
			return c.answer(cniConfAnswer{Problem: err.Error()}, "", fmt.Errorf("cni-conf: %w", err))
		} else if *to == "" {
			*to = filepath.Join(dirs.Conf, "10-flannel.conf")
		}
		sources := c.cniSources()
		sources.Within = *within
		// doubt: the options that HNS may refuse for pods, without those that a flag has set.
		// (Complete leaves out EncapOverhead by itself.) incomplete says what could not be
		// read. This is no error if the flags have set all that Make needs.
		doubt, incomplete := sources.Complete(ctx, &spec)
		doubt.LoopbackDSR = doubt.LoopbackDSR && !c.flags.Changed("loopback-dsr")
		spec.List = filepath.Ext(*to) == ".conflist"
		if _, err := conflist.Make(spec); err != nil {
			// The cause is first: what is missing may only be so because of it. Each line
			// names the command, like the first one.
			problems := errors.Join(incomplete, err).Error()
			return c.reportUsage(errors.New("cni-conf: " + strings.ReplaceAll(problems, "\n", "\ncni-conf: ")))
		}
		if *pluginDir == "" && *to != "-" {
			c.warnOfPlugins(dirs, spec.Programs())
		}
		done := conflist.Outcome{Path: *to}
		err := conflist.CheckPlugins(*pluginDir, spec.Programs()) // nil without --plugin-dir
		if err == nil {
			done, err = c.putCNIConf(ctx, sources, spec, doubt, *to, *force)
		}
		if err != nil { // the document must not claim a result
			err, done = fmt.Errorf("cni-conf: %w", err), conflist.Outcome{Path: done.Path}
		}
		exit := c.answer(cniConfAnswer{done, problem(err)}, done.Text(), err)
		if exit == exitOK && done.Result == "differs" && !*keep { // an edited file was left unchanged
			return exitNotReady
		}
		return exit
	}
}

// putCNIConf writes the file, without those options in doubt that HNS refuses. force
// overwrites a file that was edited. The record shows whether it was, and is in the
// directory of the subnet file, like all that this flanneld keeps.
func (c *call) putCNIConf(
	ctx context.Context, sources node.CNISources, spec conflist.Spec, doubt conflist.Options, to string, force bool,
) (conflist.Outcome, error) {
	f, err := conflist.Open(to, conflist.Record(c.SubnetFile), spec, doubt, force)
	if err != nil {
		return conflist.Outcome{Path: to}, err
	}
	return f.Put(sources.TryInHNS(ctx, spec, doubt, f)) // TryInHNS decides which options to leave out
}

// warnOfPlugins warns if containerd does not find one of the programs, which may be
// installed later. If containerd has several directories (bins), Bin is only the first one,
// and any of them may have the programs.
func (c *call) warnOfPlugins(dirs cniDirs, programs []string) {
	if dirs.Config == "" { // no containerd was found
		return
	}
	if err := conflist.CheckPlugins(dirs.Bin, programs); err != nil && len(dirs.bins) == 1 {
		c.log.Warn("containerd does not find the plugins that the configuration calls", "cause", causeNoPlugins, "error", err, "set_by", dirs.from.Bin.Origin())
	}
}

// causeNoPlugins is a value of the attribute cause in the log.
const causeNoPlugins = "plugins-missing"

// cniSources returns where to read the values that the flags do not set.
func (c *call) cniSources() node.CNISources {
	from := node.CNISources{
		// Discarded: the error says why etcd does not answer.
		NetConf: func(ctx context.Context) ([]byte, error) {
			return readNetConf(ctx, c.options, slog.New(slog.DiscardHandler))
		},
		NetConfName: netConfName(c.options), NetConfRemote: !c.Kube.On, SubnetFile: c.SubnetFile,
		// HNS: nil except on Windows; open until the process ends. Underlay: only to find the
		// adapter that has the node's address.
		HNS: node.OpenHNS(), KubeProxyDSR: probe.KubeProxyDSR, Log: c.log,
		Underlay: anyUnderlay,
	}
	// Networks of Services are in the Kubernetes API also if the leases are in etcd.
	if c.Kube.On || c.Kube.named() {
		from.Services = func(ctx context.Context) ([]netip.Prefix, error) { return kube.ServiceNetworks(ctx, *c.Kube.client()) }
	}
	return from
}
