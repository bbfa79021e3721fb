package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flannel/pkg/cniconf"
	"flannel/pkg/file"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/pkg/version"
	"flannel/subnet"
	"flannel/subnet/kube"
)

// written is what cni-conf did, for --json.
type written struct {
	Path   string          `json:"path"`
	Result string          `json:"result"` // "written", "unchanged", "differs" (and was left alone), "overwritten", "shown"
	Diff   string          `json:"diff,omitempty"`
	Conf   json.RawMessage `json:"conf"`
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
	return p.Masked(), err
}

// makeCNIConf is the command that writes the CNI configuration of a Windows node. Who edited it keeps the edits.
func makeCNIConf(ctx context.Context, o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	var s cniconf.Spec
	to := flags.String("to", systemPath("/etc/cni/net.d/10-flannel.conf"), "`file` to write, a .conf or a .conflist; - only shows it")
	flags.StringVar(&s.Plugin, "plugin", "", "`one` of "+strings.Join(cniconf.Plugins(), ", ")+"; default: win-overlay or win-bridge, as the backend asks for")
	flags.IntVar(&s.API, "api-version", 2, "1 for dockershim's days, 2 for containerd")
	flags.StringVar(&s.Network, "network-name", "", "`name` of the HNS network; default: the daemon's, else flannel.4096 or cbr0")
	flags.Func("cluster-cidr", "pod `network`; default: what the subnet file says", listOf(&s.Cluster, parseNetwork))
	flags.Func("service-cidr", "`network` of Services; default: what the cluster says (needs a kubeconfig that may ask)", listOf(&s.Services, parseNetwork))
	flags.Func("management-cidr", "`network` of the nodes, which bridges reach without NAT; default: that of the node's address", listOf(&s.Management, parseNetwork))
	flags.Func("nat-exception", "another `network` that pods reach without NAT", listOf(&s.Spare, parseNetwork))
	flags.Func("dns", "`address` of the cluster's DNS; default: what kubelet gives each pod", listOf(&s.DNS, netip.ParseAddr))
	flags.Func("dns-search", "`domain` to search names in, such as svc.cluster.local", listOf(&s.Search, func(t string) (string, error) { return t, nil }))
	flags.Func("management-ip", "the node's own `address`; default: the daemon's", func(text string) (err error) {
		s.ManagementIP, err = netip.ParseAddr(text)
		return err
	})
	flags.BoolVar(&s.LoopbackDSR, "loopback-dsr", true, "let a pod reach itself through a Service")
	flags.StringVar(&s.MACPrefix, "mac-prefix", "0E-2A", "first `bytes` of pods' MAC addresses in an overlay; as Backend.MacPrefix")
	force := flags.Bool("force", false, "overwrite a file that says something else")
	asJSON := flags.Bool("json", false, "print what was done as one JSON document")
	if done, code := parseCommand(&flags, o, stdout, stderr); done {
		return code
	}
	// What is asked for is checked after what is known has been filled in, so that all that is missing is told at once.
	noServices := complete(ctx, o, &s)
	s.List = filepath.Ext(*to) == ".conflist"
	conf, err := cniconf.Make(s)
	if err != nil {
		for line := range strings.Lines(errors.Join(err, noServices).Error()) {
			code(errors.New("cni-conf: "+strings.TrimSpace(line)), stderr)
		}
		return exitUsage
	}
	done, err := putCNIConf(*to, conf, *force)
	if err == nil {
		err = tell(stdout, done, *asJSON)
	}
	switch {
	case err != nil:
		return code(err, stderr)
	case done.Result == "differs":
		return exitNotWell
	}
	return exitOK
}

// complete fills in what was not given, from the daemon, the subnet file, the machine and the cluster. What cannot be
// had stays empty, and is asked for by cniconf; the error is why the cluster did not say its service networks.
func complete(ctx context.Context, o options, s *cniconf.Spec) (noServices error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var node status.Node
	if r, err := status.Ask(ctx, status.Socket(o.SubnetFile)); err == nil && r.Node != nil {
		node = *r.Node
	}
	s.Plugin = cmp.Or(s.Plugin, map[string]string{"vxlan": "win-overlay", "host-gw": "win-bridge"}[node.Backend])
	for _, d := range node.Devices { // on Windows, these are HNS networks
		if d.Name != node.Underlay.Name {
			s.Network = cmp.Or(s.Network, d.Name)
		}
	}
	usual := "flannel.4096"
	if strings.HasSuffix(s.Plugin, "bridge") {
		usual = "cbr0"
	}
	s.Network = cmp.Or(s.Network, usual)
	if env, err := subnet.ReadEnv(o.SubnetFile); err == nil && len(s.Cluster) == 0 {
		s.Cluster = slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	if !s.ManagementIP.IsValid() && len(node.Underlay.Addrs) > 0 {
		s.ManagementIP = node.Underlay.Addrs[0]
	}
	if seen, err := underlay.Read(underlay.Options{}); err == nil && len(s.Management) == 0 {
		s.Management = linkOf(seen, s.ManagementIP)
	}
	if len(s.Services) == 0 && (o.Kube.On || o.Kube.Kubeconfig != "" || o.Kube.APIURL != "") {
		s.Services, noServices = kube.ServiceNetworks(ctx, kube.Options{Kubeconfig: o.Kube.Kubeconfig, APIURL: o.Kube.APIURL, UserAgent: "flanneld/" + version.Version})
	}
	return noServices
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

// putCNIConf writes the file unless it says something else: that may be somebody's work.
func putCNIConf(to string, conf []byte, force bool) (written, error) {
	done := written{Path: to, Result: "shown", Conf: conf}
	if to == "-" {
		return done, nil
	}
	was, err := os.ReadFile(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		done.Result = "written"
	case err != nil:
		return done, fmt.Errorf("cni-conf: %w", err)
	case cniconf.Same(was, conf):
		done.Result = "unchanged"
		return done, nil
	default:
		done.Diff, done.Result = cniconf.Diff(was, conf), "differs"
		if !force {
			return done, nil
		}
		done.Result = "overwritten"
	}
	if _, err := file.Put(to, conf, 0o644); err != nil {
		return done, fmt.Errorf("cni-conf: %w", err)
	}
	return done, nil
}

func tell(w io.Writer, done written, asJSON bool) (err error) {
	switch {
	case asJSON:
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(done)
	case done.Result == "shown":
		_, err = w.Write(done.Conf)
	case done.Result == "differs":
		_, err = fmt.Fprintf(w, "%s%s says something else and was left alone; --force overwrites it\n", done.Diff, done.Path)
	default:
		_, err = fmt.Fprintf(w, "%s%s: %s\n", done.Diff, done.Path, done.Result)
	}
	return err
}
