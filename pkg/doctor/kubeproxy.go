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
	name, _ := argument(s.Windows.KubeProxy.Value, "hostname-override")
	switch node := s.Cluster.Node; {
	case name != "" && node != "" && !strings.EqualFold(name, node):
		return fail("Give kube-proxy --hostname-override="+node+", the name of the Node: with another, it deletes the endpoints of pods.", "it is %s, and the Node is %s", name, node)
	case name != "":
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

// proxyNetwork: kube-proxy works on one network, which it knows by name; with another's, or none, it makes no policies.
func proxyNetwork(s Snapshot) Finding {
	why, judged := s.kubeProxy()
	network, _, found := s.hns()
	switch {
	case !judged:
		return why
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case !found:
		return skip("there is no HNS network of ours")
	}
	name, _ := argument(s.Windows.KubeProxy.Value, "network-name")
	if file, _ := argument(s.Windows.KubeProxy.Value, "config"); name == "" && file != "" {
		return skip("its settings are in %s", file)
	}
	switch {
	case name == "":
		return skip("it is not given, so kube-proxy goes by its variable KUBE_NETWORK, which is not seen from here and must be %s", network.Name)
	case !strings.EqualFold(name, network.Name):
		return fail("Start kube-proxy with --network-name="+network.Name+".", "it is %s, and our network %s", name, network.Name)
	}
	return ok("%s", name)
}

// programs are what a node of Kubernetes cannot do without; who starts them, and as what, is their own matter.
func programs(s Snapshot) Finding {
	if !s.Windows.Programs.Known {
		return s.Windows.Programs.missing()
	}
	if r := s.report(); r != nil && r.Store == "etcd" {
		return skip("leases are in etcd, so this may be no node of Kubernetes")
	}
	run := s.Windows.Programs.Value
	var gone []string
	for _, any := range [][]string{{"kubelet"}, {"kube-proxy"}, {"containerd", "dockerd"}} {
		if !slices.ContainsFunc(any, func(name string) bool { return slices.Contains(run, name) }) {
			gone = append(gone, any[0])
		}
	}
	if len(gone) > 0 {
		return warn("Start what is missing (Start-Service, or start.ps1) and look at its own log for why it ended; as a service it starts with the system.",
			"not running: %s", strings.Join(gone, ", "))
	}
	return ok("%s", strings.Join(run, ", "))
}
