package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/doctor/ruleset"
)

// forwards is the check FL201 (its row is in linux.go): it checks parameters of the host
// and of devices. flanneld sets those of the host and of its own devices, too: a later
// sysctl --system may reset them, and in a container /proc/sys may be read-only. It
// leaves those of other devices to whoever made them.
func forwards(s Snapshot) Finding {
	var off, fixes []string
	for _, path := range inUse(s, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding") {
		if value := s.Linux.Sysctls.Value[path]; value != "1" && (value != "" || s.Linux.Sysctls.Known) {
			off = append(off, strings.ReplaceAll(path, "/", ".")+" is "+cmp.Or(value, "missing"))
		}
	}
	if len(off) > 0 {
		fixes = append(fixes, "Set the parameter to 1 on the host (sysctl -w), and in /etc/sysctl.d. flanneld sets it, too, "+
			"but something resets it or /proc/sys is read-only.")
	}
	for _, p := range s.deviceSysctls() {
		if value := s.Linux.Sysctls.Value[p.path]; value == p.wrong { // "" is the usual value, see Sysctls
			off = append(off, p.path+" is "+value)
			fixes = append(fixes, fmt.Sprintf("Run sysctl -w %s=%s on the host, and correct what sets it (/etc/sysctl.d, systemd-networkd).", p.path, p.right))
		}
	}
	if len(off) > 0 {
		return fail(strings.Join(fixes, " "), "%s", strings.Join(off, ", "))
	}
	if missing := firstReason(sysctlsKnown(s), devicesKnown(s), interfacesKnown(s)); missing.Verdict != "" {
		return missing // which devices pods' packets arrive on
	}
	if s.underlayName() == ruleset.AnyDevice {
		return ok("for every address family in use, on flanneld's devices and those of pods; %s", because("the underlay is not known", leaseKnown(s)))
	}
	return ok("for every address family in use, on every device that pods' packets arrive on")
}

// deviceSysctl is a kernel parameter of a device, with a value that keeps pods' packets
// from being forwarded, and its opposite.
type deviceSysctl struct{ path, wrong, right string }

// deviceSysctls returns the parameters of the devices on which packets from and to pods arrive:
// flanneld's own, the underlay, and the interfaces with an address of this node's subnet.
// IPv6 packets are forwarded whatever a single device's parameter says.
func (s Snapshot) deviceSysctls() (list []deviceSysctl) {
	v4, v6 := s.families()
	pods := s.podInterfaces()
	var names []string
	for _, d := range s.tunnels() {
		names = append(names, d.Name)
	}
	n := s.node()
	if underlay := s.underlayName(); underlay != ruleset.AnyDevice {
		names = append(names, underlay)
	}
	for _, name := range slices.Concat(names, pods) {
		if v4 {
			list = append(list, deviceSysctl{"net/ipv4/conf/" + name + "/forwarding", "0", "1"})
		}
		if v6 && (slices.Contains(pods, name) || strings.HasPrefix(name, "flannel-v6.")) {
			list = append(list, deviceSysctl{"net/ipv6/conf/" + name + "/disable_ipv6", "1", "0"}) // it drops all of IPv6
		}
	}
	if n != nil && n.Backend == "ipsec" {
		for _, name := range []string{"all", n.Underlay.Name} { // packets bypass IPsec
			list = append(list, deviceSysctl{"net/ipv4/conf/" + name + "/disable_xfrm", "1", "0"},
				deviceSysctl{"net/ipv4/conf/" + name + "/disable_policy", "1", "0"})
		}
	}
	return list
}

// podInterfaces returns the names of the interfaces, except for flanneld's, with an
// address of this node's subnet.
func (s Snapshot) podInterfaces() (names []string) {
	tunnels := s.tunnels()
	for _, in := range s.Interfaces.Value.Interfaces {
		isTunnel := slices.ContainsFunc(tunnels, func(d Device) bool { return d.Name == in.Name })
		for _, a := range in.Addrs {
			if !in.Loopback && !isTunnel && !slices.Contains(names, in.Name) && s.isOwn(a.IP) {
				names = append(names, in.Name)
			}
		}
	}
	return names
}
