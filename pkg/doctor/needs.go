package doctor

import (
	"slices"
	"strings"
)

// needs lists what a check needs, the most basic first. Each function returns a
// Finding with the reason why the Snapshot does not have it, a zero one if it has.
// The first reason is the result of the check, whose function is not called then
// (Check.examine). So the function relies on what its row lists.
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
	return firstReason(paths.missing(), unless(len(paths.Value) > 0, because("no peer was tested", daemonAnswers(s))))
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

// What the daemon says. Without an answer, none of the texts may say anything about the
// daemon: not what it lacks, and not what is off.

// daemonAnswers skips a check of the daemon's report, if there is none: FL101 has a verdict
// about that.
func daemonAnswers(s Snapshot) Finding {
	switch {
	case s.report() != nil:
		return Finding{}
	case s.Daemon.Known:
		return skip("the daemon does not answer")
	case s.Daemon.WhyNot != "":
		return skip("the daemon could not be asked: %s", s.Daemon.WhyNot)
	}
	return skip("the daemon was not asked")
}

func leaseKnown(s Snapshot) Finding {
	return firstReason(daemonAnswers(s), unless(s.node() != nil, "the daemon has no lease"))
}

func peersKnown(s Snapshot) Finding {
	r := s.report()
	return firstReason(daemonAnswers(s), unless(r != nil && r.PeersKnown, "the daemon does not know the peers yet"))
}

// Names of backends.
const (
	wireGuard = "wireguard"
	ipsec     = "ipsec"
)

func wireGuardUsed(s Snapshot) Finding { return s.backendIs(wireGuard) }
func ipsecUsed(s Snapshot) Finding     { return s.backendIs(ipsec) }

func (s Snapshot) backendIs(name string) Finding {
	n := s.node()
	return firstReason(leaseKnown(s), unless(n != nil && n.Backend == name, "the backend is not "+name))
}

// Values that checks need.

func familiesKnown(s Snapshot) Finding {
	return unless(len(s.subnets()) > 0, because("the address families in use are not known", leaseKnown(s), subnetFileExists(s)))
}

func subnetKnown(s Snapshot) Finding {
	return unless(len(s.subnets()) > 0, because("this node's subnet is not known", leaseKnown(s), subnetFileExists(s)))
}

func podNetworksKnown(s Snapshot) Finding {
	return unless(len(s.podNetworks()) > 0, because("the pod network is not known", leaseKnown(s), subnetFileExists(s)))
}

// podFlowsKnown skips a check of pods' packets if no family has both a network and a subnet.
func podFlowsKnown(s Snapshot) Finding {
	return unless(len(s.podFlows()) > 0, because("the pod network of this node's subnet is not known", leaseKnown(s), subnetFileExists(s)))
}

// subnetFileExists skips a check of the subnet file's content, if there is none: FL103 has
// a verdict about that.
func subnetFileExists(s Snapshot) Finding {
	switch {
	case s.EnvMalformed:
		return skip("the subnet file is malformed")
	case !s.Env.Known && s.Env.WhyNot != "":
		return skip("the subnet file could not be read: %s", s.Env.WhyNot)
	case !s.Env.Known:
		return skip("the subnet file was not read")
	}
	return unless(!s.Env.Value.IsZero(), "there is no subnet file")
}

// formerKnown skips what depends on the former subnets, which only the subnet file has, if the
// file was not read, or is not that of the present subnets.
func formerKnown(s Snapshot) Finding {
	ofFile := Snapshot{Env: s.Env}.subnets()
	return firstReason(subnetFileExists(s), unless(slices.Equal(ofFile, s.subnets()), "the subnet file has "+join(ofFile...)))
}

func podMTUKnown(s Snapshot) Finding {
	return firstReason(subnetFileExists(s), unless(s.Env.Value.MTU != 0, "the subnet file has no FLANNEL_MTU"))
}

func outersKnown(s Snapshot) Finding {
	reason := "flanneld has no tunnel device"
	switch n := s.node(); {
	case n == nil: // the devices' names and types do not tell the packets of wireguard and ipsec
		reason = because("it is not known which packets a tunnel sends", leaseKnown(s))
	case n.Backend == wireGuard && len(n.Networks) > 1: // one device may send by both families, see authenticated
		reason = "WireGuard has no peers yet, or no port, so that the address family of its packets is not known"
	}
	return unless(len(s.outers()) > 0, reason)
}

func vxlanExists(s Snapshot) Finding {
	return unless(len(s.vxlans()) > 0, because("no VXLAN device is known to be flanneld's", leaseKnown(s)))
}

// bridgeExists skips a check of the pods' bridge if there is none. An unread configuration
// may name any bridge.
func bridgeExists(s Snapshot) Finding {
	_, found := s.ownPlugin()
	switch {
	case s.bridgeName() != "" || !slices.ContainsFunc(s.Linux.Devices.Value, func(d Device) bool { return d.Type == "bridge" }):
		return unless(len(s.bridges()) > 0, "the pods' bridge does not exist")
	case !found && len(s.CNI.Value.broken()) > 0:
		return undecidable("%s", s.noConf(s.ofSubnetFile()))
	}
	return firstReason(cniKnown(s), confCallsBridge(s))
}

func confCallsFlannel(s Snapshot) Finding {
	_, plugins := s.flannelConf()
	return unless(len(plugins) > 0, s.noConf(""))
}

// noConf returns why there is no configuration that calls flannel as described.
func (s Snapshot) noConf(how string) string {
	if len(s.CNI.Value.broken()) > 0 {
		return "no CNI configuration is known to call flannel" + how + ", and some are unread or malformed: see FL301"
	}
	return "no CNI configuration calls flannel" + how
}

// ofSubnetFile describes for noConf the configuration that ownPlugin looks for.
func (s Snapshot) ofSubnetFile() string { return " with the subnet file " + s.SubnetFile }

// confCallsBridge skips a check of pods that have no port of a bridge, or whose
// configuration is not known.
func confCallsBridge(s Snapshot) Finding {
	own, found := s.ownPlugin()
	if other := own.otherDelegate(); other != "" {
		return skip("the CNI configuration delegates to %s, so that pods have no ports of a bridge", other)
	}
	return unless(found, s.noConf(s.ofSubnetFile()))
}

// gatewayNeeded skips a check of the bridge's address if the bridge plugin accepts any.
func gatewayNeeded(s Snapshot) Finding {
	own, _ := s.ownPlugin()
	d := own.Delegate
	switch ipam := own.IPAM.Type; {
	case ipam != "" && ipam != "host-local":
		return skip("the addresses of pods are those of the IPAM plugin %s", ipam)
	case d != nil && d.ForceAddress:
		return skip("with forceAddress the plugin bridge replaces the bridge's address")
	case d != nil && d.IsGateway != nil && !*d.IsGateway && !d.IsDefaultGateway:
		return skip("without isGateway the bridge has no address")
	}
	return Finding{}
}

func hnsNetworkExists(s Snapshot) Finding {
	_, _, found := s.hns()
	return unless(found, because("no HNS network is known to be flanneld's", leaseKnown(s)))
}

// nameKnown returns a reason if it is not known which of HNS's networks is flanneld's: none has
// a usual name, and the daemon reports no node, whose devices would have the name that
// Backend.Name sets.
func nameKnown(s Snapshot) Finding {
	if _, _, found := s.hns(); found || s.node() != nil {
		return Finding{}
	}
	var names []string
	for _, n := range s.otherNetworks() {
		names = append(names, n.Name)
	}
	if len(names) == 0 { // no network can be flanneld's, if they are known
		return networksKnown(s)
	}
	return undecidable("%s", because(several(names)+" may be flanneld's, by Backend.Name", leaseKnown(s)))
}

func overlayExists(s Snapshot) Finding {
	_, overlay, found := s.hns()
	return unless(found && overlay, because("no overlay network is known to be flanneld's", leaseKnown(s)))
}

func hostGWExists(s Snapshot) Finding {
	_, overlay, found := s.hns()
	return unless(found && !overlay, because("no host-gw network is known to be flanneld's", leaseKnown(s)))
}

func hostAdapterKnown(s Snapshot) Finding {
	if _, found := s.hostAdapter(); found {
		return Finding{}
	}
	return s.noAdapter()
}

func (s Snapshot) noAdapter() Finding {
	return skip("%s", because("the adapter with the host's address is not known", leaseKnown(s)))
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

// because returns a reason, followed by the reasons of the findings that are not zero.
func because(reason string, causes ...Finding) string {
	var texts []string
	for _, c := range causes {
		if c.Verdict != "" {
			texts = append(texts, c.Seen)
		}
	}
	if len(texts) == 0 {
		return reason
	}
	return reason + ": " + strings.Join(texts, ", ")
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
