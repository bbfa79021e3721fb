package doctor

import (
	"net/netip"
	"slices"
	"strings"
)

// argument is the value of a flag in a command line: --name=value or --name value.
func argument(args []string, name string) (value string, given bool) {
	for i, a := range args {
		flag, value, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || flag != name:
		case has:
			return value, true
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			return args[i+1], true
		default:
			return "", true
		}
	}
	return "", false
}

// kubeProxy is the Finding for checks that cannot be judged without its command line.
func (s Snapshot) kubeProxy() (why Finding, judged bool) {
	switch {
	case !s.Windows.KubeProxy.Known:
		return s.Windows.KubeProxy.missing(), false
	case len(s.Windows.KubeProxy.Value) == 0:
		return skip("kube-proxy does not run"), false
	}
	return Finding{}, true
}

// hostnameOverride: by default kube-proxy takes the host name for the Node's, finds no endpoints of "its" node local,
// and deletes those that are.
func hostnameOverride(s Snapshot) Finding {
	if why, judged := s.kubeProxy(); !judged {
		return why
	}
	if name, _ := argument(s.Windows.KubeProxy.Value, "hostname-override"); name != "" {
		return ok("%s", name)
	}
	if file, _ := argument(s.Windows.KubeProxy.Value, "config"); file != "" {
		return skip("its settings are in %s", file)
	}
	return fail("Give kube-proxy --hostname-override with the name of the Node: without, it deletes the endpoints of pods.", "it is not given")
}

// sourceVIP finds the address of an earlier subnet, which the usual scripts keep in a file forever, and one that
// host-local may give to a pod.
func sourceVIP(s Snapshot) Finding {
	why, judged := s.kubeProxy()
	_, overlay, found := s.hns()
	own := s.subnets()
	switch {
	case !judged:
		return why
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case !found:
		return skip("there is no HNS network of ours")
	case !overlay:
		return skip("only an overlay needs one")
	}
	const fix = "Reserve it anew by flanneld source-vip (remove SourceVip.json and SourceVipRequest.json of the old scripts), and restart kube-proxy with --source-vip."
	text, given := argument(s.Windows.KubeProxy.Value, "source-vip")
	if file, _ := argument(s.Windows.KubeProxy.Value, "config"); !given && file != "" {
		return skip("its settings are in %s", file)
	}
	vip, err := netip.ParseAddr(text)
	switch {
	case !given || err != nil:
		return fail(fix, "kube-proxy has no --source-vip")
	case !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(vip) }):
		return fail(fix, "%s is not in this node's subnet %s: the node has rejoined with another", vip, join(own...))
	case s.Windows.SourceVIP.Value.IsValid() && s.Windows.SourceVIP.Value != vip:
		return fail(fix, "kube-proxy has %s, and what is reserved is %s: a pod may get kube-proxy's", vip, s.Windows.SourceVIP.Value)
	case s.Windows.Reserved.Known && !slices.Contains(s.Windows.Reserved.Value, vip):
		return fail(fix, "kube-proxy has %s, and nothing reserves that: a pod may get it", vip)
	}
	return ok("%s", vip)
}

// dsr finds Services that do not answer without a word in any log.
func dsr(s Snapshot) Finding {
	why, judged := s.kubeProxy()
	switch {
	case !judged:
		return why
	case !s.Windows.HNS.Known:
		return s.Windows.HNS.missing()
	case s.Windows.HNS.Value.Problem != "":
		return skip("the version of HNS is not known: %s", s.Windows.HNS.Value.Problem)
	}
	h := s.Windows.HNS.Value
	value, given := argument(s.Windows.KubeProxy.Value, "enable-dsr")
	if file, _ := argument(s.Windows.KubeProxy.Value, "config"); file != "" && !given && !h.dsr() {
		return skip("its settings are in %s", file)
	}
	if given && value != "false" && !h.dsr() {
		return fail("Start kube-proxy with --enable-dsr=false, or update Windows.", "--enable-dsr is given, and HNS %d.%d cannot do it", h.Major, h.Minor)
	}
	return ok("HNS %d.%d", h.Major, h.Minor)
}

// natSpares looks at the OutBoundNAT exceptions of the CNI configuration: traffic within the cluster must keep the
// pods' addresses, and that to the world must not.
func natSpares(s Snapshot) Finding {
	name, _ := s.flannelConf()
	networks := s.podNetworks()
	switch {
	case !s.CNI.Known:
		return s.CNI.missing()
	case name == "":
		return skip("there is no configuration of flannel")
	case len(networks) == 0:
		return skip("the pod network is not known: the daemon has no lease or does not answer, and there is no subnet file")
	}
	i := slices.IndexFunc(s.CNI.Value.Files, func(f CNIFile) bool { return f.Name == name })
	spared, err := natExceptions(s.CNI.Value.Files[i].Text)
	if err != nil {
		return fail("Write it anew by flanneld cni-conf --force.", "%s: %v", name, err)
	}
	const fix = "flanneld cni-conf --force writes a configuration that spares the pod and service networks, and with a bridge those of the nodes; it counts for new pods."
	within := func(p netip.Prefix) bool {
		return slices.ContainsFunc(spared, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) })
	}
	for _, p := range slices.Concat(networks, s.Cluster.Services.Value) {
		if !within(p) {
			return fail(fix, "%s spares %s, which leaves out %s", name, or(join(spared...), "nothing"), p)
		}
	}
	if slices.ContainsFunc(spared, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return fail(fix, "%s spares everything, so no answer from the world outside finds back", name)
	}
	if !s.Cluster.Services.Known {
		return ok("%s spares %s (whether the service network is among them is not known: %s)", name, join(spared...), or(s.Cluster.Services.WhyNot, "it was not looked at"))
	}
	return ok("%s spares %s", name, join(spared...))
}

// podNetworks are those of the cluster, by the daemon's word, or else by the subnet file's.
func (s Snapshot) podNetworks() (all []netip.Prefix) {
	if n := s.node(); n != nil {
		for _, net := range n.Networks {
			all = append(all, net.Network)
		}
		return all
	}
	both := []netip.Prefix{s.Env.Value.V4Network, s.Env.Value.V6Network}
	return slices.DeleteFunc(both, func(p netip.Prefix) bool { return !p.IsValid() })
}
