package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

// linuxChecks returns the checks of a Linux node. The columns are those of daemonChecks.
func linuxChecks() []Check {
	return []Check{
		{"FL201", "the kernel forwards packets",
			"the kernel does not forward packets", linux, needs{familiesKnown}, forwards},
		{"FL202", "packets between pods on a bridge pass the rules of kube-proxy",
			"packets between pods on a bridge bypass the rules of kube-proxy", linux, needs{familiesKnown, devicesKnown, bridgeExists}, bridgePassesRules},
		{"FL203", "no firewall rule drops the packets that are forwarded for pods",
			"a firewall rule drops packets that are forwarded for pods", linux, needs{familiesKnown, podFlowsKnown}, forwardAccepts},
		{"FL204", "the host's firewall accepts the tunnel's packets",
			"a firewall rule drops the tunnel's packets", linux, needs{devicesKnown, outersKnown}, tunnelAccepted},
		{"FL205", "neither the kernel nor the network card breaks the tunnel's checksums",
			"the kernel or the network card is known to break the tunnel's checksums", linux, needs{devicesKnown, vxlanExists}, checksums},
		{"FL206", "no other program manages flanneld's devices",
			"another program manages flanneld's devices", linux, needs{devicesKnown}, unmanagedDevices},
		{"FL207", "the pods' bridge has an address of this node's subnet",
			"the pods' bridge has another address than this node's subnet gives it", linux, needs{devicesKnown, interfacesKnown, bridgeExists, gatewayNeeded, subnetKnown}, bridgeAddress},
		{"FL208", "the pods' bridge and interfaces have the MTU of the subnet file",
			"the pods' bridge or interfaces have another MTU than the subnet file", linux, needs{devicesKnown, podMTUKnown, bridgeExists}, podMTU},
		{"FL209", "every WireGuard peer to which packets were sent has answered",
			"WireGuard peers to which packets were sent have not answered", linux, needs{peersKnown, wireGuardUsed}, peersAnswer},
		{"FL210", "IPsec has keys for every peer",
			"IPsec has no keys for some peers", linux, needs{peersKnown, ipsecUsed}, peersHaveKeys},
		{"FL211", "only nodes and pods of the cluster send into the pod network",
			"packets were found that no node or pod of the cluster sends, or nobody looks for them", linux, needs{daemonAnswers}, nobodyForges},
		{"FL213", "host-local has addresses for new pods",
			"host-local has no addresses for new pods, or reserves many for pods that do not exist", linux, needs{reservedKnown, subnetKnown, devicesKnown, cniKnown, confCallsFlannel, confCallsBridge}, addressesLeft},
	}
}

// bridgePassesRules finds that iptables ignores bridged packets. Example: pod A
// calls a Service, and the endpoint is pod B on the same bridge. kube-proxy's
// rule translates the destination to B's address. B's answer goes over the
// bridge only; if it bypasses iptables, it is not translated back, and A gets
// an answer from an address that it has not called.
func bridgePassesRules(s Snapshot) Finding {
	const load = "Run modprobe br_netfilter and sysctl -w net.bridge.bridge-nf-call-iptables=1 (…-ip6tables=1), " +
		"and put both into /etc/modules-load.d and /etc/sysctl.d."
	unknown := Finding{}
	for _, path := range inUse(s, "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables") {
		switch value, exists := s.Linux.Sysctls.Value[path]; {
		case !exists && !s.Linux.Sysctls.Known:
			unknown = sysctlsKnown(s) // that of the other family may be wrong
		case !exists:
			return warn(load, "the module br_netfilter is not loaded")
		case value != "1":
			return warn(load, "%s is %s", strings.ReplaceAll(path, "/", "."), value)
		}
	}
	return firstReason(unknown, ok("iptables processes bridged packets"))
}

// checksums finds two known bugs with checksum offload: kernels before 5.7
// compute a wrong UDP checksum for an encapsulated packet that was masqueraded
// (kubernetes/kubernetes#88986), unless the distribution has the fix, and
// VMware's vmxnet3 drops or corrupts tunnel packets on ports that it does not
// know (projectcalico/calico#4727).
func checksums(s Snapshot) Finding {
	tunnels, unknown := s.vxlans(), Finding{} // at least one tunnel: see the check's needs
	for _, d := range tunnels {
		off := fmt.Sprintf("Run ethtool -K %s tx-checksum-ip-generic off; a udev rule makes it permanent.", d.Name)
		parent := s.device(d.Parent)
		switch {
		case !d.TxChecksum.Known:
			unknown = d.TxChecksum.missing() // another device may have one of the bugs
		case !d.TxChecksum.Value: // the kernel computes them, with neither bug
		case parent.Driver == "vmxnet3" && d.Port != 4789: // it knows this port, that of RFC 7348
			return warn(off, "%s offloads checksums to %s, whose driver vmxnet3 is known to corrupt them on port %d",
				d.Name, parent.Name, d.Port)
		case olderThan(s.Linux.Kernel, 5, 7) && !fixedByRHEL(s.Linux.Kernel):
			return warn("If UdpInCsumErrors rises on peers (nstat -asz): "+off+" Or use kernel 5.7 or later.",
				"%s offloads checksums, and kernel %s may compute wrong ones for masqueraded packets, unless the distribution "+
					"has the fix", d.Name, s.Linux.Kernel)
		}
	}
	if unknown.Verdict != "" {
		return unknown
	}
	return ok("neither kernel %s nor the driver is known to do so; if large transfers hang, try ethtool -K %s "+
		"tx-checksum-ip-generic off",
		s.Linux.Kernel, tunnels[0].Name)
}

// device returns the device with the index, a zero one if there is none.
func (s Snapshot) device(index int) Device {
	for _, d := range s.Linux.Devices.Value {
		if d.Index == index {
			return d
		}
	}
	return Device{}
}

// olderThan reports whether a kernel's release ("6.1.0-28-amd64") is before a
// version; false if it cannot be parsed.
func olderThan(release string, major, minor int) bool {
	var haveMajor, haveMinor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &haveMajor, &haveMinor); n != 2 {
		return false
	}
	return haveMajor < major || haveMajor == major && haveMinor < minor
}

// fixedByRHEL reports whether a kernel is one of RHEL 8.4 or later, or of its
// relatives, such as 4.18.0-553.el8_10. They have the fix of 5.7
// (rancher/rke2#1541), but Oracle's 5.4.17 for the same system may not.
func fixedByRHEL(release string) bool {
	build := 0
	n, _ := fmt.Sscanf(release, "4.18.0-%d.", &build)
	return n == 1 && build >= 305 && strings.Contains(release, ".el8")
}

// unmanagedDevices finds a LinkManager that manages flanneld's devices: it
// removes addresses and routes that it has not set. LinkManager.Manages comes
// from state files that remain when the program stops, so that it must run,
// too.
func unmanagedDevices(s Snapshot) Finding {
	own := map[string]bool{}
	for _, d := range append(s.tunnels(), s.bridges()...) {
		own[d.Name] = true
	}
	var managed, stopped []string
	runs := false
	for _, m := range s.Linux.Managers.Value {
		runs = runs || m.Running
		for _, name := range m.Manages {
			switch {
			case !own[name]: // not flanneld's
			case m.Running:
				managed = append(managed, m.Name+" manages "+name)
			default:
				stopped = append(stopped, m.Name+" would manage "+name)
			}
		}
	}
	const fix = "NetworkManager: a file in /etc/NetworkManager/conf.d with [keyfile] " +
		"unmanaged-devices=interface-name:flannel*;interface-name:cni*;interface-name:veth*. " +
		"systemd-networkd: a .network file for these names with Unmanaged=yes."
	switch {
	case len(managed) > 0:
		return warn(fix, "%s", several(managed))
	case !s.Linux.Managers.Known:
		return managersKnown(s)
	case runs && bridgeExists(s).Verdict == Undecided: // it may manage the pods' bridge
		return bridgeExists(s)
	case len(stopped) > 0:
		return ok("%s, but does not run", several(stopped))
	}
	return ok("they are not managed")
}

// bridges returns the pods' bridge, if it exists.
func (s Snapshot) bridges() []Device {
	name := s.bridgeName()
	return slices.DeleteFunc(slices.Clone(s.Linux.Devices.Value), func(d Device) bool { return d.Type != "bridge" || d.Name != name })
}

// bridgeAddress finds other addresses of the pods' bridge than the gateways of this node's
// subnets: of a subnet that the node had before it rejoined the cluster, or foreign ones, such as
// of another CNI configuration, or the right one with another prefix length. The bridge plugin
// does not change the address of an existing bridge, so that new pods have no gateway in their
// subnet.
func bridgeAddress(s Snapshot) Finding {
	const pods = "--field-selector spec.hostNetwork=false,spec.nodeName=NODE"
	own := join(s.subnets()...)
	for _, b := range s.bridges() {
		a := s.otherAddresses(b)
		others := slices.Concat(a.former, a.foreign)
		if len(others) == 0 {
			continue
		}
		verdict, seen := warn, fmt.Sprintf("%s has %s, but this node's subnet is %s", b.Name, several(others), own)
		if len(a.refusing) > 0 {
			verdict = fail
			seen += "; the plugin bridge refuses new pods because of " + several(a.refusing)
		}
		unknown := formerKnown(s)
		const byFlanneld = "flanneld deletes %s when no pod is on %s any more."
		switch {
		case unknown.Verdict != "":
			return verdict("See FL103, and run the doctor again: what to do depends on the former subnets in the subnet file.",
				"%s; %s", seen, unknown.Seen)
		case len(a.foreign) > 0:
			var commands []string
			for _, address := range a.foreign {
				commands = append(commands, "ip address delete "+address+" dev "+b.Name)
			}
			fix := "Remove any other CNI configuration that uses " + b.Name + ", delete the pods that have addresses outside " +
				own + " (in Kubernetes, kubectl get pods -A -o wide " + pods + " shows the addresses), and run " +
				strings.Join(commands, "; ") + "."
			if len(a.former) > 0 {
				fix += " " + fmt.Sprintf(byFlanneld, several(a.former), b.Name)
			}
			return verdict(fix, "%s; no former subnet in the subnet file has as its gateway: %s, which flanneld does not delete",
				seen, several(a.foreign))
		case len(a.refusing) > 0:
			return fail("Delete its pods, which are of an earlier subnet; in Kubernetes: kubectl delete pods -A "+pods+". "+
				fmt.Sprintf(byFlanneld, several(a.former), b.Name), "%s", seen)
		}
		return warn("Delete the pods of that subnet, which other nodes no longer reach. "+fmt.Sprintf(byFlanneld, several(a.former), b.Name),
			"%s", seen)
	}
	return ok("%s", own)
}

// otherAddresses are the addresses of the pods' bridge that are neither link-local IPv6 ones nor the gateways of this
// node's subnets. Those of a family in which the node has no subnet are left out: they hinder nobody, and flanneld
// leaves them alone.
type otherAddresses struct {
	former   []string // gateways of former subnets, by the subnet file; flanneld deletes them
	foreign  []string // all others, which flanneld does not delete
	refusing []string // those of both because of which the bridge plugin refuses new pods
}

func (s Snapshot) otherAddresses(bridge Device) (others otherAddresses) {
	var addrs []underlay.Addr // the oldest first
	for _, in := range s.Interfaces.Value.Interfaces {
		if in.Index == bridge.Index {
			addrs = in.Addrs
		}
	}
	for _, a := range addrs {
		isGatewayOf := func(p netip.Prefix) bool { return isGateway(a, p) }
		isOfFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == a.IP.Is4() }
		switch {
		case !slices.ContainsFunc(s.subnets(), isOfFamily):
		case a.IP.Is6() && a.IP.IsLinkLocalUnicast(), slices.ContainsFunc(s.subnets(), isGatewayOf):
		case slices.ContainsFunc(slices.Concat(s.Env.Value.FormerV4, s.Env.Value.FormerV6), isGatewayOf):
			others.former = append(others.former, withLength(a))
		default:
			others.foreign = append(others.foreign, withLength(a))
		}
	}
	// The bridge plugin looks for the gateway in the kernel's order: the oldest IPv4 address
	// first, the newest IPv6 address first. Before it, no other IPv4 address and no overlapping
	// IPv6 address may come.
	for _, p := range s.subnets() {
		inOrder := slices.DeleteFunc(slices.Clone(addrs), func(a underlay.Addr) bool { return a.IP.Is4() != p.Addr().Is4() })
		if p.Addr().Is6() {
			slices.Reverse(inOrder)
		}
		for _, a := range inOrder {
			if isGateway(a, p) {
				break
			}
			if p.Addr().Is4() || p.Contains(a.IP) || p.Overlaps(a.Net) {
				others.refusing = append(others.refusing, withLength(a))
			}
		}
	}
	return others
}

// isGateway reports whether an address is that of the pods' bridge in a subnet. Its prefix
// length is not always known.
func isGateway(a underlay.Addr, subnet netip.Prefix) bool {
	return a.IP == dataplane.GatewayOf(subnet).Addr() && (a.Net == subnet.Masked() || !a.Net.IsValid() && !a.Host)
}

// withLength returns an address with its prefix length, if that is known.
func withLength(a underlay.Addr) string {
	switch {
	case a.Net.IsValid():
		return netip.PrefixFrom(a.IP, a.Net.Bits()).String()
	case a.Host:
		return netip.PrefixFrom(a.IP, a.IP.BitLen()).String()
	}
	return a.IP.String()
}

// peersAnswer finds peers without a handshake. WireGuard does not tell why: it ignores
// packets that it cannot authenticate. Peer.Tunnels is what it knows of the peer: the
// bytes sent, and the time of the last handshake (zero: none yet).
func peersAnswer(s Snapshot) Finding {
	var silent, unknown []string
	for _, p := range s.peersWithPaths() {
		if len(p.Tunnels) == 0 {
			unknown = append(unknown, p.Name)
		}
		for _, tunnel := range p.Tunnels {
			if tunnel.Handshake.IsZero() && tunnel.Sent > 0 {
				silent = append(silent, fmt.Sprintf("%s at %s", p.Name, tunnel.Endpoint))
			}
		}
	}
	switch {
	case len(silent) > 0:
		return warn("Check on these nodes that flanneld runs, that their firewalls and those between accept UDP to this address, "+
			"and that all nodes have the same Backend.PSK. If a node is behind NAT, set PersistentKeepaliveInterval to 25.",
			"no handshake with %s", several(silent))
	case len(unknown) > 0:
		return undecidable("flanneld has not found %s in WireGuard: they joined just now, and flanneld retries, or see FL101", several(unknown))
	}
	return ok("no peer is silent")
}

// peersWithPaths returns the peers that are not rejected or pending (which have not
// published how to reach them).
func (s Snapshot) peersWithPaths() []status.Peer {
	return slices.DeleteFunc(slices.Clone(s.report().Peers), func(p status.Peer) bool {
		return p.State == status.Rejected || p.State == status.Pending
	})
}

// peersHaveKeys finds peers without security associations, which are negotiated whether
// there are packets or not. Peer.Tunnels has charon's connections to the peer, and Handshake
// is since when a connection has keys. If charon has no connection at all, it probably does
// not run or has just started; keys that it negotiated before are valid for about an hour.
func peersHaveKeys(s Snapshot) Finding {
	peers, connections := s.peersWithPaths(), 0
	var without []string
	for _, p := range peers {
		connections += len(p.Tunnels)
		if len(p.Tunnels) == 0 {
			without = append(without, fmt.Sprintf("%s at %s (charon has no connection)", p.Name, addresses(p.PublicIPs)))
		}
		for _, tunnel := range p.Tunnels {
			if tunnel.Handshake.IsZero() {
				without = append(without, fmt.Sprintf("%s at %s", p.Name, tunnel.Endpoint.Addr()))
			}
		}
	}
	switch {
	case len(peers) == 0:
		return ok("there are no peers")
	case connections == 0:
		return undecidable("flanneld knows of no connection of strongSwan's charon, which does not run, does not answer, or has just started: see FL101")
	case len(without) == 0:
		return ok("for all %d peers", len(peers))
	}
	needed := "UDP to the ports 500 and 4500"
	if !s.node().UDPEncap {
		needed += " and IP protocol 50 (ESP)"
	}
	return warn("Check on these nodes that flanneld and strongSwan run, that their firewalls and those between accept "+needed+", "+
		"and that all nodes have the same Backend.PSK and ESPProposal. The log of strongSwan's charon has the reason.",
		"none for %s", several(without))
}

// podMTU finds pods with another MTU than new pods get: the MTU of a running
// pod does not change. A bridge without ports does not count: when its last port
// is deleted, the kernel sets the bridge's MTU to 1500 until there is another port,
// unless it was set by hand.
func podMTU(s Snapshot) Finding {
	want := s.Env.Value.MTU
	var different []string
	for _, b := range s.bridges() {
		if !slices.ContainsFunc(s.Linux.Devices.Value, func(d Device) bool { return d.Master == b.Index }) {
			continue
		}
		for _, d := range s.Linux.Devices.Value {
			if (d.Index == b.Index || d.Master == b.Index) && d.MTU != want { // the bridge, or a pod's port of it
				different = append(different, fmt.Sprintf("%s has %d", d.Name, d.MTU))
			}
		}
	}
	if len(different) > 0 {
		return warn("Recreate the pods of this node: the MTU of a running pod does not change. Remove \"mtu\" from the CNI configuration's delegate if it is there: it "+
			"overrides the subnet file.",
			"FLANNEL_MTU is %d, but %s", want, several(different))
	}
	return ok("%d", want)
}
