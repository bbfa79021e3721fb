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

// cniConfAnswer is what cni-conf answers with --json.
type cniConfAnswer struct {
	cniconf.Written
	Problem string `json:"problem,omitempty"`
}

// cniConfOptions are the flags of cni-conf beyond the configuration's own Spec.
type cniConfOptions struct {
	to, pluginDir string
	force, keep   bool
}

const aboutCNIConf = `Writes the CNI configuration of a Windows node. Plugin, HNS network, pod networks and MAC prefix are
taken from the network configuration, which is read as the daemon reads it.

What an earlier cni-conf wrote is replaced. What somebody edited since, or wrote by hand, is not: the
difference is shown, the exit status is 3, and --force overwrites it.

  flanneld [flags of the daemon, such as --kube-subnet-mgr] cni-conf [flags]
`

func (c *call) cniConfFlags(s *cniconf.Spec) *cniConfOptions {
	var a cniConfOptions
	c.flags.StringVar(&a.to, "to", systemPath("/etc/cni/net.d/10-flannel.conf"), "`file` to write, a .conf or a .conflist; - only shows it")
	c.flags.StringVar(&a.pluginDir, "plugin-dir", "", "`directory` that must have the plugins; default: nobody looks")
	c.flags.StringVar(&s.Plugin, "plugin", "", "`one` of "+strings.Join(cniconf.Plugins(), ", ")+"; default: win-overlay or win-bridge, as the backend asks for")
	c.flags.IntVar(&s.API, "api-version", 2, "1 for dockershim's days, 2 for containerd")
	c.flags.StringVar(&s.Network, "network-name", "", "`name` of the HNS network; default: as the backend calls it")
	c.flags.Func("cluster-cidr", "pod `network`; default: as the network configuration has it", flags.ListOf(&s.Cluster, flags.ParseNetwork))
	c.flags.Func("service-cidr", "`network` of Services; default: what the cluster says (needs a kubeconfig that may ask)", flags.ListOf(&s.Services, flags.ParseNetwork))
	c.flags.Func("management-cidr", "`network` of the nodes, which bridges reach without NAT; default: that of the node's address", flags.ListOf(&s.Management, flags.ParseNetwork))
	c.flags.Func("nat-exception", "another `network` that pods reach without NAT", flags.ListOf(&s.Spare, flags.ParseNetwork))
	c.flags.Func("dns", "`address` of the cluster's DNS; default: what kubelet gives each pod", flags.ListOf(&s.DNS, flags.ParseAddress))
	c.flags.Func("dns-search", "`domain` to search names in, such as svc.cluster.local", flags.ListOf(&s.Search, func(t string) (string, error) { return t, nil }))
	c.flags.Func("management-ip", "the node's own `address`; default: the daemon's", func(text string) (err error) {
		s.ManagementIP, err = flags.ParseAddress(text)
		return err
	})
	c.flags.BoolVar(&s.LoopbackDSR, "loopback-dsr", true, "let a pod reach itself through a Service")
	c.flags.StringVar(&s.MACPrefix, "mac-prefix", "", "first `bytes` of pods' MAC addresses in an overlay; default: Backend.MacPrefix, else 0E-2A")
	c.flags.BoolVar(&a.force, "force", false, "overwrite a file that somebody edited")
	c.flags.BoolVar(&a.keep, "keep", false, "to leave an edited file alone is success: exit status 0")
	c.jsonFlag("print what was done as one JSON document: path, result, diff, conf, problem")
	return &a
}

// makeCNIConf is the command that writes the CNI configuration of a Windows node. Who edited it keeps the edits.
func makeCNIConf(c *call) func(context.Context) int {
	var s cniconf.Spec
	a := c.cniConfFlags(&s)
	return func(ctx context.Context) int {
		// What is asked for is checked after what is known has been filled in, so that all that is missing is told at once.
		unknown := c.cniSources().Complete(ctx, &s)
		s.List = filepath.Ext(a.to) == ".conflist"
		conf, err := cniconf.Make(s)
		if err != nil {
			var all []error
			for line := range strings.Lines(errors.Join(err, unknown).Error()) {
				all = append(all, errors.New("cni-conf: "+strings.TrimSpace(line)))
			}
			return c.refuse(errors.Join(all...))
		}
		done := cniconf.Written{Path: a.to}
		if err = cniconf.HasPlugins(a.pluginDir, s.Programs()); err == nil {
			done, err = cniconf.Put(a.to, conf, cniconf.Record(c.SubnetFile), a.force)
		}
		if err != nil {
			err, done = fmt.Errorf("cni-conf: %w", err), cniconf.Written{Path: done.Path}
		}
		exit := c.answer(cniConfAnswer{done, problem(err)}, done.Text(), err)
		if exit == exitOK && done.Result == "differs" && !a.keep {
			return exitNotWell
		}
		return exit
	}
}

// cniSources say where that is known which the flags do not say.
func (c *call) cniSources() winnode.CNISources {
	from := winnode.CNISources{
		NetConf:     func(ctx context.Context) ([]byte, error) { return readNetConf(ctx, c.options, c.log) },
		NetConfName: netConfName(c.options), NetConfFar: !c.Kube.On, Backends: backends(), SubnetFile: c.SubnetFile,
	}
	if c.Kube.On || c.Kube.Kubeconfig != "" || c.Kube.APIURL != "" {
		from.API = c.Kube.client()
	}
	return from
}
