package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flannel/backend"
	"flannel/pkg/cniconf"
	"flannel/pkg/dataplane"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/pkg/version"
	"flannel/subnet/kube"
)

// written is what cni-conf did, for --json.
type written struct {
	Path   string          `json:"path"`
	Result string          `json:"result,omitempty"` // "written", "unchanged", "updated", "differs" (and was left alone), "overwritten", "shown"
	Diff   string          `json:"diff,omitempty"`
	Conf   json.RawMessage `json:"conf,omitempty"`

	Problem string `json:"problem,omitempty"`
}

// listOf is a flag that may be given more than once, with commas between values.
func listOf[T any](all *[]T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		for one := range strings.SplitSeq(text, ",") {
			v, err := parse(strings.TrimSpace(one))
			if err != nil {
				return err
			}
			*all = append(*all, v)
		}
		return nil
	}
}

func parseNetwork(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%.60q is no network; use one like 10.96.0.0/12", text)
	}
	return p.Masked(), nil
}

// cniConfOptions are the flags of cni-conf beyond the configuration's own Spec.
type cniConfOptions struct {
	to, pluginDir       string
	force, keep, asJSON bool
}

const cniConfUsage = `Writes the CNI configuration of a Windows node. Plugin, HNS network, pod networks and MAC prefix are
taken from the network configuration, which is read as the daemon reads it.

What an earlier cni-conf wrote is replaced. What somebody edited since, or wrote by hand, is not: the
difference is shown, the exit status is 3, and --force overwrites it.

  flanneld [flags of the daemon, such as --kube-subnet-mgr] cni-conf [flags]
`

func cniConfFlags(flags *goflag.FlagSet, s *cniconf.Spec) *cniConfOptions {
	var a cniConfOptions
	flags.StringVar(&a.to, "to", systemPath("/etc/cni/net.d/10-flannel.conf"), "`file` to write, a .conf or a .conflist; - only shows it")
	flags.StringVar(&a.pluginDir, "plugin-dir", "", "`directory` that must have the plugins; default: nobody looks")
	flags.StringVar(&s.Plugin, "plugin", "", "`one` of "+strings.Join(cniconf.Plugins(), ", ")+"; default: win-overlay or win-bridge, as the backend asks for")
	flags.IntVar(&s.API, "api-version", 2, "1 for dockershim's days, 2 for containerd")
	flags.StringVar(&s.Network, "network-name", "", "`name` of the HNS network; default: as the backend calls it")
	flags.Func("cluster-cidr", "pod `network`; default: as the network configuration has it", listOf(&s.Cluster, parseNetwork))
	flags.Func("service-cidr", "`network` of Services; default: what the cluster says (needs a kubeconfig that may ask)", listOf(&s.Services, parseNetwork))
	flags.Func("management-cidr", "`network` of the nodes, which bridges reach without NAT; default: that of the node's address", listOf(&s.Management, parseNetwork))
	flags.Func("nat-exception", "another `network` that pods reach without NAT", listOf(&s.Spare, parseNetwork))
	flags.Func("dns", "`address` of the cluster's DNS; default: what kubelet gives each pod", listOf(&s.DNS, parseAddress))
	flags.Func("dns-search", "`domain` to search names in, such as svc.cluster.local", listOf(&s.Search, func(t string) (string, error) { return t, nil }))
	flags.Func("management-ip", "the node's own `address`; default: the daemon's", func(text string) (err error) {
		s.ManagementIP, err = parseAddress(text)
		return err
	})
	flags.BoolVar(&s.LoopbackDSR, "loopback-dsr", true, "let a pod reach itself through a Service")
	flags.StringVar(&s.MACPrefix, "mac-prefix", "", "first `bytes` of pods' MAC addresses in an overlay; default: Backend.MacPrefix, else 0E-2A")
	flags.BoolVar(&a.force, "force", false, "overwrite a file that somebody edited")
	flags.BoolVar(&a.keep, "keep", false, "to leave an edited file alone is success: exit status 0")
	flags.BoolVar(&a.asJSON, "json", false, "print what was done as one JSON document: path, result, diff, conf, problem")
	return &a
}

// makeCNIConf is the command that writes the CNI configuration of a Windows node. Who edited it keeps the edits.
func makeCNIConf(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	var s cniconf.Spec
	a := cniConfFlags(&flags, &s)
	if done, code := parseCommand(&flags, cniConfUsage, o, stdout, stderr); done {
		return code
	}
	// What is asked for is checked after what is known has been filled in, so that all that is missing is told at once.
	unknown := complete(ctx, o, &s, log)
	s.List = filepath.Ext(a.to) == ".conflist"
	conf, err := cniconf.Make(s)
	if err != nil {
		var all []error
		for line := range strings.Lines(errors.Join(err, unknown).Error()) {
			all = append(all, errors.New("cni-conf: "+strings.TrimSpace(line)))
		}
		return refuse(o.Args, errors.Join(all...), stdout, stderr)
	}
	done := written{Path: a.to}
	if err = hasPlugins(a.pluginDir, s.Programs()); err == nil {
		done, err = putCNIConf(a.to, conf, cniRecord(o), a.force)
	}
	if err != nil {
		err = fmt.Errorf("cni-conf: %w", err)
		done = written{Path: done.Path, Problem: err.Error()}
	}
	exit := answer(stdout, stderr, a.asJSON, done, done.text(), err)
	if exit == exitOK && done.Result == "differs" && !a.keep {
		return exitNotWell
	}
	return exit
}

// complete fills in what was not given, from the network configuration, the daemon, the machine and the cluster. What
// cannot be had stays empty, and is asked for by cniconf; the error is why the first and the last did not say it.
func complete(ctx context.Context, o options, s *cniconf.Spec, log *slog.Logger) error {
	noConf := fromNetConf(ctx, o, s, log)
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if !s.ManagementIP.IsValid() {
		if r, err := status.Ask(ctx, status.Socket(o.SubnetFile)); err == nil && r.Node != nil && len(r.Node.Underlay.Addrs) > 0 {
			s.ManagementIP = r.Node.Underlay.Addrs[0]
		}
	}
	if seen, err := underlay.Read(underlay.Options{}); err == nil && len(s.Management) == 0 {
		s.Management = linkOf(seen, s.ManagementIP)
	}
	var noServices error
	if len(s.Services) == 0 && (o.Kube.On || o.Kube.Kubeconfig != "" || o.Kube.APIURL != "") {
		s.Services, noServices = kube.ServiceNetworks(ctx, kube.Options{Kubeconfig: o.Kube.Kubeconfig, APIURL: o.Kube.APIURL, UserAgent: "flanneld/" + version.Version})
	}
	s.Services = ofFamilies(s.Services, s.Cluster)
	return errors.Join(noConf, noServices)
}

// ofFamilies leaves out networks of a family that pods do not have: IPv6 on an overlay, whatever else the cluster has.
func ofFamilies(all, pods []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(all, func(p netip.Prefix) bool {
		return len(pods) > 0 && !slices.ContainsFunc(pods, func(have netip.Prefix) bool { return have.Addr().Is4() == p.Addr().Is4() })
	})
}

// askWithin bounds each question to another machine.
const askWithin = 10 * time.Second

// usualPlugin is the one of the CNI project for a kind of HNS network.
var usualPlugin = map[dataplane.Kind]string{dataplane.Overlay: "win-overlay", dataplane.L2Bridge: "win-bridge"}

// fromNetConf takes from the network configuration what its backend makes of it. etcd is asked only if need be, since
// it may be away; a file costs nothing.
func fromNetConf(ctx context.Context, o options, s *cniconf.Spec, log *slog.Logger) error {
	defer func() { s.MACPrefix = cmp.Or(s.MACPrefix, "0E-2A") }() // the plugin's own default, and HNS's
	if s.Plugin != "" && s.Network != "" && len(s.Cluster) > 0 && !o.Kube.On {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	raw, err := readNetConf(ctx, o, log)
	if err != nil {
		return fmt.Errorf("%w; or give --plugin, --network-name and --cluster-cidr", err)
	}
	config, maker, _, err := parseConfigFor("windows", raw)
	if err != nil {
		return fmt.Errorf("%s cannot work: %w", netConfName(o), err)
	}
	// Of the node, name and MAC prefix depend on nothing; an MTU must be there.
	dev, err := networkFor(maker, backend.Node{OS: "windows", Underlay: underlay.Link{MTU: 1500}, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return fmt.Errorf("%s: %w", netConfName(o), err)
	}
	s.Plugin, s.Network = cmp.Or(s.Plugin, usualPlugin[dev.Kind]), cmp.Or(s.Network, dev.Name)
	if len(s.Cluster) == 0 {
		s.Cluster = slices.DeleteFunc([]netip.Prefix{config.V4.Prefix, config.V6.Prefix}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	if first := dev.MACs[0]; first != (dataplane.MAC{}) {
		s.MACPrefix = cmp.Or(s.MACPrefix, fmt.Sprintf("%02X-%02X", first[0], first[1]))
	}
	return nil
}

// linkOf is the network of an address of this machine.
func linkOf(seen underlay.Snapshot, ip netip.Addr) []netip.Prefix {
	for _, in := range seen.Interfaces {
		for _, a := range in.Addrs {
			if a.IP == ip && a.Net.IsValid() {
				return []netip.Prefix{a.Net}
			}
		}
	}
	return nil
}
