// The checks in this file are about kube-proxy on Windows, by its command line
// (Windows.KubeProxy); their rows, which say when they run, are in windows.go. s.hns returns
// flanneld's HNS network, whether the backend is vxlan (overlay), and whether there is one.

package doctor

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

// argument returns the value of a flag in a command line, which may be written
// --name=value or --name value.
func argument(args []string, name string) (value string, given bool) {
	for i, a := range args {
		flag, value, hasValue := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || flag != name: // not this flag
		case hasValue:
			return value, true
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			return args[i+1], true
		default:
			return "", true
		}
	}
	return "", false
}

// configFile returns the file with kube-proxy's settings. If a flag is not in
// the command line, it may be there.
func configFile(args []string) string {
	file, _ := argument(args, "config")
	return file
}

const inConfigFile = "kube-proxy has its settings in %s"

// hostnameOverride finds a kube-proxy with a wrong node name; the default is
// the host name. It takes endpoints of pods on this node for stale ones,
// because they are on a node of another name, and deletes them.
func hostnameOverride(s Snapshot) Finding {
	args := s.Windows.KubeProxy.Value
	name, _ := argument(args, "hostname-override")
	switch node := s.Cluster.Node; {
	case name != "" && node != "" && !strings.EqualFold(name, node):
		return fail("Start kube-proxy with --hostname-override="+node+". With another name it deletes the endpoints of pods.",
			"it is %s, but the Node is %s", name, node)
	case name != "" && node == "":
		return ok("%s (the name of the Node is not known)", name)
	case name != "":
		return ok("%s", name)
	}
	if file := configFile(args); file != "" {
		return skip(inConfigFile, file)
	}
	return fail("Start kube-proxy with --hostname-override and the name of the Node. Without it, it deletes the "+
		"endpoints of pods.",
		"it is not set")
}

// sourceVIP finds a source VIP of a former subnet, which common scripts save in
// a file, and one that is not reserved, so that host-local may assign it to a
// pod.
func sourceVIP(s Snapshot) Finding {
	args, own := s.Windows.KubeProxy.Value, s.subnets()
	if _, overlay, _ := s.hns(); !overlay {
		return skip("only an overlay needs one")
	}
	const fix = "Run flanneld source-vip to reserve one, and restart kube-proxy with it in --source-vip. Delete " +
		"SourceVip.json and SourceVipRequest.json of other scripts."
	text, given := argument(args, "source-vip")
	if file := configFile(args); !given && file != "" {
		return skip(inConfigFile, file)
	}
	vip, err := netip.ParseAddr(text)
	switch {
	case !given || err != nil:
		return fail(fix, "kube-proxy has no --source-vip")
	case len(own) == 0:
		return subnetKnown(s)
	case !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(vip) }):
		return fail(fix, "%s is not in this node's subnet %s; maybe the node had another subnet before it rejoined",
			vip, join(own...))
	case s.Windows.SourceVIP.Value.IsValid() && s.Windows.SourceVIP.Value != vip:
		return fail(fix, "kube-proxy has %s, but %s is reserved: a pod may get the same address as kube-proxy", vip,
			s.Windows.SourceVIP.Value)
	case s.Windows.Reserved.Known && !slices.Contains(s.Windows.Reserved.Value, vip):
		return fail(fix, "kube-proxy has %s, but it is not reserved: a pod may get it, too", vip)
	}
	if missing := firstReason(s.Windows.SourceVIP.missing(), s.Windows.Reserved.missing()); missing.Verdict != "" {
		return ok("%s (whether it is reserved is not known: %s)", vip, missing.Seen)
	}
	return ok("%s", vip)
}

// UsesDSR reports whether a kube-proxy with these arguments uses direct server
// return; known is false if only its configuration file may say so.
func UsesDSR(args []string) (dsr, known bool) {
	value, given := argument(args, "enable-dsr")
	if !given && configFile(args) != "" {
		return false, false
	}
	return given && value != "false", true
}

// dsr finds a kube-proxy that requests direct server return from an HNS without
// it. Services do not answer then, and no log has an error. It also finds a CNI
// configuration that is for direct server return, which kube-proxy does not use.
func dsr(s Snapshot) Finding {
	args, h := s.Windows.KubeProxy.Value, s.Windows.HNS.Value
	if h.Problem != "" {
		return undecidable("the version of HNS is not known: %s", h.Problem)
	}
	uses, known := UsesDSR(args)
	switch {
	case !known && !h.supportsDSR():
		return skip(inConfigFile, configFile(args))
	case uses && !h.supportsDSR():
		return fail("Start kube-proxy with --enable-dsr=false, or update Windows.",
			"--enable-dsr is set, but HNS %d.%d does not support it", h.Major, h.Minor)
	case known && !uses && !s.CNI.Known:
		return ok("HNS %d.%d (%s)", h.Major, h.Minor, because("whether the CNI configuration has loopbackDSR is not known", cniKnown(s)))
	case known && !uses && s.loopbackDSR():
		return warn("Start kube-proxy with --enable-dsr, or run flanneld cni-conf --loopback-dsr=false and recreate the pods.",
			"the CNI configuration has loopbackDSR, which is for kube-proxy's --enable-dsr, and takes ports of the node without it")
	}
	return ok("HNS %d.%d", h.Major, h.Minor)
}

// loopbackDSR reports whether the CNI configuration of flannel lets pods reach
// themselves by direct server return.
func (s Snapshot) loopbackDSR() bool {
	conf, _ := s.flannelConf()
	values, err := members(conf.Text, "loopbackDSR")
	return err == nil && slices.ContainsFunc(values, func(v json.RawMessage) bool { return string(v) == "true" })
}

// proxyNetwork finds a kube-proxy with the name of another HNS network than
// flanneld's. Without the right name it creates no policies, so that Services
// do not answer.
func proxyNetwork(s Snapshot) Finding {
	args := s.Windows.KubeProxy.Value
	network, _, _ := s.hns()
	name, _ := argument(args, "network-name")
	file := configFile(args)
	switch {
	case name == "" && file != "":
		return skip(inConfigFile, file)
	case name == "":
		return skip("it is not set; kube-proxy's environment variable KUBE_NETWORK, which the doctor cannot read, "+
			"must be %s",
			network.Name)
	case !strings.EqualFold(name, network.Name):
		return fail("Start kube-proxy with --network-name="+network.Name+".",
			"it is %s, but flanneld's network is %s", name, network.Name)
	}
	return ok("%s", name)
}

// programs finds programs of a Kubernetes node that do not run.
func programs(s Snapshot) Finding {
	if r := s.report(); r != nil && r.Store == "etcd" {
		return skip("leases are in etcd, so that this node may not be a Kubernetes node")
	}
	running := s.Windows.Programs.Value
	var missing []string
	for _, alternatives := range [][]string{{"kubelet"}, {"kube-proxy"}, {"containerd", "dockerd"}} {
		if !slices.ContainsFunc(alternatives, func(name string) bool { return slices.Contains(running, name) }) {
			missing = append(missing, alternatives[0])
		}
	}
	if len(missing) > 0 {
		return warn("Start them (Start-Service, or start.ps1), and see in their logs why they ended. Install them "+
			"as services, so that they start with the system.",
			"not running: %s", strings.Join(missing, ", "))
	}
	return ok("%s", strings.Join(running, ", "))
}
