package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"flannel/pkg/cniconf"
	"flannel/pkg/flags"
	"flannel/pkg/winnode"
)

// cniConfAnswer is the JSON document of cni-conf.
type cniConfAnswer struct {
	cniconf.Outcome
	Problem string `json:"problem,omitempty"`
}

// cniConfOptions are the flags of cni-conf that are not in cniconf.Spec.
type cniConfOptions struct {
	to, pluginDir string
	force, keep   bool
}

const aboutCNIConf = `Writes the CNI configuration of a Windows node. The defaults for plugin, HNS network, pod networks and
MAC prefix come from the network configuration, which is read from the same place as the daemon reads it.

A file that an earlier cni-conf wrote is replaced. A file that was edited since, or written by hand, is
not replaced: cni-conf shows the difference and exits with status 3. --force overwrites it.

  flanneld [flags of the daemon, such as --kube-subnet-mgr] cni-conf [flags]
`

func (c *call) cniConfFlags(s *cniconf.Spec) *cniConfOptions {
	var a cniConfOptions
	c.flags.StringVar(&a.to, "to", systemPath("/etc/cni/net.d/10-flannel.conf"), "`file` to write, a .conf or a .conflist; - prints it instead")
	c.flags.StringVar(&a.pluginDir, "plugin-dir", "", "`directory` that must contain the plugins; default: do not check")
	c.flags.StringVar(&s.Plugin, "plugin", "", "`one` of "+strings.Join(cniconf.Plugins(), ", ")+"; default: win-overlay or win-bridge, as the backend needs")
	c.flags.IntVar(&s.API, "api-version", 2, "version of the HNS API: 1 for dockershim, 2 for containerd")
	c.flags.StringVar(&s.Network, "network-name", "", "`name` of the HNS network; default: as the backend names it")
	c.flags.Func("cluster-cidr", "pod `network`; default: as in the network configuration", flags.ListOf(&s.Cluster, flags.ParseNetwork))
	c.flags.Func("service-cidr", "`network` of Services; default: read from the cluster (needs a kubeconfig with the permission)", flags.ListOf(&s.Services, flags.ParseNetwork))
	c.flags.Func("management-cidr", "`network` of the nodes, which pods on an L2Bridge reach without NAT; default: that of the node's address", flags.ListOf(&s.Management, flags.ParseNetwork))
	c.flags.Func("nat-exception", "another `network` that pods reach without NAT", flags.ListOf(&s.NATExceptions, flags.ParseNetwork))
	c.flags.Func("dns", "`address` of the cluster's DNS; default: kubelet sets it for each pod", flags.ListOf(&s.DNS, flags.ParseAddress))
	c.flags.Func("dns-search", "`domain` to search names in, such as svc.cluster.local", flags.ListOf(&s.Search, func(t string) (string, error) { return t, nil }))
	c.flags.Func("management-ip", "the node's own `address`; default: as the daemon chooses it", func(text string) (err error) {
		s.ManagementIP, err = flags.ParseAddress(text)
		return err
	})
	c.flags.BoolVar(&s.LoopbackDSR, "loopback-dsr", true, "let a pod reach itself through a Service")
	c.flags.StringVar(&s.MACPrefix, "mac-prefix", "", "first `bytes` of pods' MAC addresses in an overlay; default: Backend.MacPrefix, else 0E-2A")
	c.flags.BoolVar(&a.force, "force", false, "overwrite a file that was edited")
	c.flags.BoolVar(&a.keep, "keep", false, "exit with status 0 if an edited file is left unchanged")
	c.jsonFlag("print what was done as one JSON document: path, result, diff, conf, problem")
	return &a
}

// makeCNIConf is the command cni-conf.
func makeCNIConf(c *call) func(context.Context) int {
	var s cniconf.Spec
	a := c.cniConfFlags(&s)
	return func(ctx context.Context) int {
		// Complete's error is not returned at once, so that all problems are reported together.
		unknown := c.cniSources().Complete(ctx, &s)
		s.List = filepath.Ext(a.to) == ".conflist"
		conf, err := cniconf.Make(s)
		if err != nil {
			var all []error
			for line := range strings.Lines(errors.Join(err, unknown).Error()) {
				all = append(all, errors.New("cni-conf: "+strings.TrimSpace(line)))
			}
			return c.reportUsage(errors.Join(all...))
		}
		done := cniconf.Outcome{Path: a.to}
		if err = cniconf.CheckPlugins(a.pluginDir, s.Programs()); err == nil {
			done, err = cniconf.Put(a.to, conf, cniconf.Record(c.SubnetFile), a.force)
		}
		if err != nil {
			err, done = fmt.Errorf("cni-conf: %w", err), cniconf.Outcome{Path: done.Path}
		}
		exit := c.answer(cniConfAnswer{done, problem(err)}, done.Text(), err)
		if exit == exitOK && done.Result == "differs" && !a.keep {
			return exitNotReady
		}
		return exit
	}
}

// cniSources returns where to read the values that the flags do not set.
func (c *call) cniSources() winnode.CNISources {
	from := winnode.CNISources{
		NetConf:     func(ctx context.Context) ([]byte, error) { return readNetConf(ctx, c.options, c.log) },
		NetConfName: netConfName(c.options), NetConfRemote: !c.Kube.On, Backends: backends(), SubnetFile: c.SubnetFile,
	}
	if c.Kube.On || c.Kube.Kubeconfig != "" || c.Kube.APIURL != "" {
		from.API = c.Kube.client()
	}
	return from
}
