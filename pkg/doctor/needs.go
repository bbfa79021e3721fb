package doctor

import (
	"cmp"
	"slices"
)

// needs lists what a check needs, the most basic first. Each function returns
// why the Snapshot does not have it, "" if it has. Examine skips the check with
// the first reason.
type needs []func(Snapshot) (whyNot string)

// Facts that checks need.

func daemonKnown(s Snapshot) string     { return s.Daemon.whyUnknown() }
func processesKnown(s Snapshot) string  { return s.Processes.whyUnknown() }
func interfacesKnown(s Snapshot) string { return s.Interfaces.whyUnknown() }
func cniKnown(s Snapshot) string        { return s.CNI.whyUnknown() }
func podCIDRsKnown(s Snapshot) string   { return s.Cluster.PodCIDRs.whyUnknown() }
func clockKnown(s Snapshot) string      { return s.Cluster.Ahead.whyUnknown() }
func proxyKnown(s Snapshot) string      { return s.Cluster.Proxy.whyUnknown() }
func sysctlsKnown(s Snapshot) string    { return s.Linux.Sysctls.whyUnknown() }
func devicesKnown(s Snapshot) string    { return s.Linux.Devices.whyUnknown() }
func managersKnown(s Snapshot) string   { return s.Linux.Managers.whyUnknown() }
func hnsKnown(s Snapshot) string        { return s.Windows.HNS.whyUnknown() }
func networksKnown(s Snapshot) string   { return s.Windows.Networks.whyUnknown() }
func adaptersKnown(s Snapshot) string   { return s.Windows.Adapters.whyUnknown() }
func routesKnown(s Snapshot) string     { return s.Windows.Routes.whyUnknown() }
func programsKnown(s Snapshot) string   { return s.Windows.Programs.whyUnknown() }
func leftFilesKnown(s Snapshot) string  { return s.Windows.LeftFiles.whyUnknown() }
func lostKnown(s Snapshot) string       { return s.Windows.Lost.whyUnknown() }

// filtersKnown needs the filter tables of iptables for the families in use.
func filtersKnown(s Snapshot) (whyNot string) {
	for _, f := range inUse(s, s.Linux.IPTables, s.Linux.IP6Tables) {
		whyNot = cmp.Or(whyNot, f.whyUnknown())
	}
	return whyNot
}

// Values that checks need.

// Reasons that checks also give themselves.
const (
	noTunnel  = "flanneld has no tunnel device"
	noVXLAN   = "flanneld has no VXLAN device"
	noAdapter = "the adapter with the host's address is not known: the daemon has no lease or does not answer"
)

func peersKnown(s Snapshot) string {
	r := s.report()
	return unless(r != nil && r.PeersKnown, "the daemon does not know the peers, or does not answer")
}

func familiesKnown(s Snapshot) string {
	return unless(len(s.subnets()) > 0,
		"the address families in use are not known: there is neither a lease nor a subnet file")
}

func subnetKnown(s Snapshot) string {
	return unless(len(s.subnets()) > 0, "this node's subnet is not known")
}

func podNetworksKnown(s Snapshot) string {
	return unless(len(s.podNetworks()) > 0,
		"the pod network is not known: the daemon has no lease or does not answer, and there is no subnet file")
}

func subnetFileExists(s Snapshot) string {
	return unless(s.Env.Known && s.Env.Value.MTU != 0, "there is no subnet file")
}

const wireGuard = "wireguard" // the backend's name

func wireGuardUsed(s Snapshot) string {
	n := s.node()
	return unless(n != nil && n.Backend == wireGuard, "the backend is not wireguard")
}

func outersKnown(s Snapshot) string {
	return unless(len(s.outers()) > 0, noTunnel)
}

func vxlanExists(s Snapshot) string { return unless(len(s.vxlans()) > 0, noVXLAN) }

func bridgeExists(s Snapshot) string {
	return unless(len(s.bridges()) > 0, "the pods' bridge does not exist")
}

func confCallsFlannel(s Snapshot) string {
	_, plugins := s.flannelConf()
	return unless(len(plugins) > 0, "no CNI configuration calls flannel")
}

func hnsNetworkExists(s Snapshot) string {
	_, _, found := s.hns()
	return unless(found, "flanneld has no HNS network")
}

func overlayExists(s Snapshot) string {
	_, overlay, found := s.hns()
	return unless(found && overlay, "flanneld has no overlay network")
}

func hostGWExists(s Snapshot) string {
	_, overlay, found := s.hns()
	return unless(found && !overlay, "flanneld has no host-gw network")
}

func hostAdapterKnown(s Snapshot) string {
	_, found := s.hostAdapter()
	return unless(found, noAdapter)
}

func kubeProxyRuns(s Snapshot) string {
	f := s.Windows.KubeProxy
	return cmp.Or(f.whyUnknown(), unless(len(f.Value) > 0, "kube-proxy does not run"))
}

func unless(met bool, reason string) string {
	if met {
		return ""
	}
	return reason
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
