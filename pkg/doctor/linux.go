package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func linuxChecks() []Check {
	return []Check{
		{"FL201", "the kernel forwards packets", linux, forwards},
		{"FL202", "what passes a bridge of pods meets the rules of kube-proxy", linux, bridgeMeetsRules},
		{"FL203", "nothing drops what is forwarded for pods", linux, forwardOpen},
		{"FL204", "the host's firewall lets the tunnel's packets in", linux, portOpen},
		{"FL205", "no network card spoils the tunnel's checksums", linux, checksums},
		{"FL206", "no other program manages our devices", linux, ownDevices},
		{"FL207", "the pods' bridge has an address of this node's subnet", linux, freshBridge},
		{"FL208", "the pods' bridge and interfaces have the MTU of the subnet file", linux, podMTU},
	}
}

// forwards looks although the daemon sets these: a later sysctl --system, or a container whose /proc/sys is read-only,
// wins against it.
func forwards(s Snapshot) Finding {
	v4, v6 := s.families()
	switch {
	case !s.Linux.Sysctls.Known:
		return s.Linux.Sysctls.missing()
	case !v4 && !v6:
		return skip("which families are in use is not known: there is neither a lease nor a subnet file")
	}
	var off []string
	for _, f := range []struct {
		on   bool
		path string
	}{{v4, "net/ipv4/ip_forward"}, {v6, "net/ipv6/conf/all/forwarding"}} {
		if f.on && s.Linux.Sysctls.Value[f.path] != "1" {
			off = append(off, strings.ReplaceAll(f.path, "/", ".")+" is "+or(s.Linux.Sysctls.Value[f.path], "missing"))
		}
	}
	if len(off) > 0 {
		return fail("sysctl -w the parameter to 1 on the host, and put it into /etc/sysctl.d: flanneld sets it, but something sets it back or /proc/sys is read-only.",
			"%s", strings.Join(off, ", "))
	}
	return ok("it does, for every family in use")
}

// bridgeMeetsRules matters where a bridge joins the pods and kube-proxy works by iptables: without it, a pod that
// calls a Service whose endpoint is on the same bridge gets an answer from an address that it never called.
func bridgeMeetsRules(s Snapshot) Finding {
	v4, v6 := s.families()
	switch {
	case !s.Linux.Sysctls.Known:
		return s.Linux.Sysctls.missing()
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	case len(s.bridges()) == 0:
		return skip("there is no bridge of pods")
	}
	const load = "modprobe br_netfilter and sysctl -w net.bridge.bridge-nf-call-iptables=1 (…-ip6tables=1), and put both into /etc/modules-load.d and /etc/sysctl.d."
	for _, f := range []struct {
		on   bool
		path string
	}{{v4, "net/bridge/bridge-nf-call-iptables"}, {v6, "net/bridge/bridge-nf-call-ip6tables"}} {
		value, there := s.Linux.Sysctls.Value[f.path]
		if f.on && !there {
			return warn(load, "the module br_netfilter is not loaded")
		}
		if f.on && value != "1" {
			return warn(load, "%s is %s", strings.ReplaceAll(f.path, "/", "."), value)
		}
	}
	return ok("it does")
}

// checksums knows two faults: kernels before 5.7 give an encapsulated packet that was masqueraded a wrong UDP checksum
// (kubernetes/kubernetes#88986), and VMware's network card drops or spoils tunnel packets on ports that it does not know
// (projectcalico/calico#4727).
func checksums(s Snapshot) Finding {
	if !s.Linux.Devices.Known {
		return s.Linux.Devices.missing()
	}
	tunnels := s.tunnels()
	if len(tunnels) == 0 {
		return skip("there is no VXLAN device of ours")
	}
	for _, d := range tunnels {
		off := fmt.Sprintf("ethtool -K %s tx-checksum-ip-generic off; a udev rule makes it last.", d.Name)
		parent, _ := s.device(d.Parent)
		switch {
		case !d.TxChecksum.Known:
			return d.TxChecksum.missing()
		case !d.TxChecksum.Value:
		case parent.Driver == "vmxnet3" && d.Port != 4789:
			return warn(off, "%s leaves checksums to %s, whose driver vmxnet3 is known to spoil them on port %d", d.Name, parent.Name, d.Port)
		case olderThan(s.Linux.Kernel, 5, 7):
			return warn(off+" Or use kernel 5.7 or later.", "%s leaves checksums to others, and kernel %s is known to spoil those of masqueraded packets", d.Name, s.Linux.Kernel)
		}
	}
	return ok("neither the kernel (%s) nor the driver is one that is known for it; if large transfers hang, try ethtool -K %s tx-checksum-ip-generic off",
		s.Linux.Kernel, tunnels[0].Name)
}

// olderThan compares a kernel's release with a version; one that cannot be read is not old.
func olderThan(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// ownDevices matters since both programs take away addresses and routes that they have not made. Their files stay behind
// when they end, so a claim counts only while the program runs.
func ownDevices(s Snapshot) Finding {
	switch {
	case !s.Linux.Managers.Known:
		return s.Linux.Managers.missing()
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	}
	ours := map[string]bool{}
	for _, d := range append(s.tunnels(), s.bridges()...) {
		ours[d.Name] = true
	}
	var claims, asleep []string
	for _, m := range s.Linux.Managers.Value {
		for _, name := range m.Manages {
			switch {
			case !ours[name]:
			case m.Running:
				claims = append(claims, m.Name+" manages "+name)
			default:
				asleep = append(asleep, m.Name+" would manage "+name)
			}
		}
	}
	const fix = "NetworkManager: a file in /etc/NetworkManager/conf.d with [keyfile] unmanaged-devices=interface-name:flannel*;interface-name:cni*;interface-name:veth*. " +
		"systemd-networkd: a .network file for these names with Unmanaged=yes."
	switch {
	case len(claims) > 0:
		return warn(fix, "%s", several(claims))
	case len(asleep) > 0:
		return ok("%s, but is not seen running", several(asleep))
	}
	return ok("none does")
}

// bridges are those that CNI configurations of ours name, cni0 unless they say otherwise.
func (s Snapshot) bridges() []Device {
	var all []Device
	for _, d := range s.Linux.Devices.Value {
		if d.Type == "bridge" && slices.Contains(s.bridgeNames(), d.Name) {
			all = append(all, d)
		}
	}
	return all
}

// freshBridge knows what a node has that rejoined with another subnet: the bridge plugin keeps a bridge that it finds,
// with the old address, and new pods have a gateway that is not theirs.
func freshBridge(s Snapshot) Finding {
	switch {
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	case !s.Interfaces.Known:
		return s.Interfaces.missing()
	case len(s.bridges()) == 0:
		return skip("there is no bridge of pods yet")
	}
	own := s.subnets()
	if len(own) == 0 {
		return skip("this node's subnet is not known")
	}
	for _, b := range s.bridges() {
		for _, in := range s.Interfaces.Value.Interfaces {
			if in.Index != b.Index {
				continue
			}
			for _, a := range in.Addrs {
				if !a.IP.IsLinkLocalUnicast() && !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a.IP) }) {
					return fail(fmt.Sprintf("Its pods are of an earlier subnet: delete them and then the bridge (ip link delete %s); the next pod makes it anew.", b.Name),
						"%s has %s, and this node's subnet is %s", b.Name, a.IP, join(own...))
				}
			}
		}
	}
	return ok("it has")
}

// subnets are this node's, by the daemon's word, or else by the subnet file's.
func (s Snapshot) subnets() []netip.Prefix {
	var own []netip.Prefix
	if n := s.node(); n != nil {
		for _, net := range n.Networks {
			own = append(own, net.Subnet)
		}
		return own
	}
	for _, p := range []netip.Prefix{s.Env.Value.V4Subnet, s.Env.Value.V6Subnet} {
		if p.IsValid() {
			own = append(own, p)
		}
	}
	return own
}

// podMTU compares what pods have with what new ones will get: nothing changes the MTU of a pod that lives.
func podMTU(s Snapshot) Finding {
	want := s.Env.Value.MTU
	switch {
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	case !s.Env.Known || want == 0:
		return skip("there is no subnet file that could say")
	case len(s.bridges()) == 0:
		return skip("there is no bridge of pods yet")
	}
	var odd []string
	for _, b := range s.bridges() {
		for _, d := range s.Linux.Devices.Value {
			if (d.Index == b.Index || d.Master == b.Index) && d.MTU != want {
				odd = append(odd, fmt.Sprintf("%s has %d", d.Name, d.MTU))
			}
		}
	}
	if len(odd) > 0 {
		return warn("Pods keep the MTU that they began with: start them anew. An \"mtu\" in the CNI configuration's delegate overrules the file; take it out.",
			"FLANNEL_MTU is %d, but %s", want, several(odd))
	}
	return ok("%d", want)
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
