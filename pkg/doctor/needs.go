package doctor

import (
	"slices"
)

// needs lists what a check needs, the most basic first. Each function returns a
// Finding with the reason why the Snapshot does not have it, a zero one if it has.
// The first reason is the result of the check.
type needs []func(Snapshot) Finding

// Facts that checks need.

func daemonKnown(s Snapshot) Finding     { return s.Daemon.missing() }
func processesKnown(s Snapshot) Finding  { return s.Processes.missing() }
func interfacesKnown(s Snapshot) Finding { return s.Interfaces.missing() }
func cniKnown(s Snapshot) Finding        { return s.CNI.missing() }
func podCIDRsKnown(s Snapshot) Finding   { return s.Cluster.PodCIDRs.missing() }
func clockKnown(s Snapshot) Finding      { return s.Cluster.Ahead.missing() }
func proxyKnown(s Snapshot) Finding      { return s.Cluster.Proxy.missing() }
func sysctlsKnown(s Snapshot) Finding    { return s.Linux.Sysctls.missing() }
func devicesKnown(s Snapshot) Finding    { return s.Linux.Devices.missing() }
func managersKnown(s Snapshot) Finding   { return s.Linux.Managers.missing() }
func reservedKnown(s Snapshot) Finding   { return s.Linux.Reserved.missing() }
func pathsKnown(s Snapshot) Finding {
	paths := s.Linux.Paths
	return firstReason(paths.missing(), unless(len(paths.Value) > 0, "no peer was tested"))
}
func hnsKnown(s Snapshot) Finding       { return s.Windows.HNS.missing() }
func networksKnown(s Snapshot) Finding  { return s.Windows.Networks.missing() }
func adaptersKnown(s Snapshot) Finding  { return s.Windows.Adapters.missing() }
func routesKnown(s Snapshot) Finding    { return s.Windows.Routes.missing() }
func programsKnown(s Snapshot) Finding  { return s.Windows.Programs.missing() }
func leftFilesKnown(s Snapshot) Finding { return s.Windows.LeftFiles.missing() }
func podsKnown(s Snapshot) Finding      { return s.Windows.LostPods.missing() }
func lostKnown(s Snapshot) Finding      { return s.Windows.Lost.missing() }
func categoryKnown(s Snapshot) Finding  { return s.Windows.Category.missing() }
func firewallKnown(s Snapshot) Finding  { return s.Windows.Firewall.missing() }
func ghostsKnown(s Snapshot) Finding    { return s.Windows.Ghosts.missing() }

// Values that checks need.

// Reasons that checks also give themselves.
const (
	noTunnel  = "flanneld has no tunnel device"
	noVXLAN   = "flanneld has no VXLAN device"
	noAdapter = "the adapter with the host's address is not known: the daemon has no lease or does not answer"
)

func peersKnown(s Snapshot) Finding {
	r := s.report()
	return unless(r != nil && r.PeersKnown, "the daemon does not know the peers, or does not answer")
}

func familiesKnown(s Snapshot) Finding {
	return unless(len(s.subnets()) > 0,
		"the address families in use are not known: there is neither a lease nor a subnet file")
}

func subnetKnown(s Snapshot) Finding {
	return unless(len(s.subnets()) > 0, "this node's subnet is not known")
}

func podNetworksKnown(s Snapshot) Finding {
	return unless(len(s.podNetworks()) > 0,
		"the pod network is not known: the daemon has no lease or does not answer, and there is no subnet file")
}

func subnetFileExists(s Snapshot) Finding {
	return unless(s.Env.Known && s.Env.Value.MTU != 0, "there is no subnet file")
}

// Names of backends.
const (
	wireGuard = "wireguard"
	ipsec     = "ipsec"
)

func wireGuardUsed(s Snapshot) Finding {
	n := s.node()
	return unless(n != nil && n.Backend == wireGuard, "the backend is not wireguard")
}

func ipsecUsed(s Snapshot) Finding {
	n := s.node()
	return unless(n != nil && n.Backend == ipsec, "the backend is not ipsec")
}

func outersKnown(s Snapshot) Finding {
	reason := noTunnel
	if n := s.node(); n != nil && n.Backend == wireGuard && len(n.Networks) > 1 {
		reason = "WireGuard has no peers yet, or no port, so that the address family of its packets is not known"
	}
	return unless(len(s.outers()) > 0, reason)
}

func vxlanExists(s Snapshot) Finding { return unless(len(s.vxlans()) > 0, noVXLAN) }

func bridgeExists(s Snapshot) Finding {
	return unless(len(s.bridges()) > 0, "the pods' bridge does not exist")
}

func confCallsFlannel(s Snapshot) Finding {
	_, plugins := s.flannelConf()
	return unless(len(plugins) > 0, "no CNI configuration calls flannel")
}

// delegateIsBridge skips a check for pods that have no port of a bridge.
func delegateIsBridge(s Snapshot) Finding {
	_, plugins := s.flannelConf()
	for _, p := range plugins {
		if d := p.Delegate; d != nil && d.Type != "" && d.Type != "bridge" {
			return skip("the CNI configuration delegates to %s, so that pods have no ports of a bridge", d.Type)
		}
	}
	return Finding{}
}

func hnsNetworkExists(s Snapshot) Finding {
	_, _, found := s.hns()
	return unless(found, "flanneld has no HNS network")
}

func overlayExists(s Snapshot) Finding {
	_, overlay, found := s.hns()
	return unless(found && overlay, "flanneld has no overlay network")
}

func hostGWExists(s Snapshot) Finding {
	_, overlay, found := s.hns()
	return unless(found && !overlay, "flanneld has no host-gw network")
}

func hostAdapterKnown(s Snapshot) Finding {
	_, found := s.hostAdapter()
	return unless(found, noAdapter)
}

func kubeProxyRuns(s Snapshot) Finding {
	f := s.Windows.KubeProxy
	return firstReason(f.missing(), unless(len(f.Value) > 0, "kube-proxy does not run"))
}

// firstReason returns the first Finding that is not zero.
func firstReason(findings ...Finding) Finding {
	for _, f := range findings {
		if f.Verdict != "" {
			return f
		}
	}
	return Finding{}
}

// unless skips a check whose condition is not met.
func unless(met bool, reason string) Finding {
	if met {
		return Finding{}
	}
	return skip("%s", reason)
}

// inUse returns the value for IPv4, that for IPv6, or both, according to the
// address families in use.
func inUse[T any](s Snapshot, ofV4, ofV6 T) []T {
	v4, v6 := s.families()
	values := []T{ofV4, ofV6}
	if !v6 {
		values = slices.Delete(values, 1, 2)
	}
	if !v4 {
		values = slices.Delete(values, 0, 1)
	}
	return values
}
