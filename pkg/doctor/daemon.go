package doctor

import (
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/encap"
	"flannel/pkg/status"
)

func daemonChecks() []Check {
	return []Check{
		{"FL101", "the daemon runs and the network is in step", anySystem, inStep},
		{"FL102", "one flanneld runs on the node", anySystem, oneDaemon},
		{"FL103", "the subnet file is there and says what the daemon has", anySystem, subnetFile},
		{"FL104", "no peer is left out", anySystem, noneLeftOut},
		{"FL105", "the store of leases answers", anySystem, storeAnswers},
		{"FL106", "what pods send fits through the tunnel and the underlay", anySystem, mtuFits},
		{"FL107", "what lies between the nodes lets pods' addresses pass (host-gw)", anySystem, betweenNodes},
		{"FL108", "no peer is retained that the store lost with many others", anySystem, noneRetained},
	}
}

// inStep comes first, since what the daemon says of itself names most causes better than a look from outside can.
func inStep(s Snapshot) Finding {
	if !s.Daemon.Known {
		return s.Daemon.missing()
	}
	r := s.Daemon.Value.Report
	switch {
	case r == nil:
		return fail("Start flanneld, or look at its log for why it ended or hangs.", "%s", s.Daemon.Value.Problem)
	case !r.Ready:
		return fail("Mend what it names; flanneld goes on by itself.", "not in step since %s: %s", r.Since.UTC().Format("2006-01-02 15:04:05Z"), oneLine(r.Problem))
	}
	return ok("in step since %s", r.Since.UTC().Format("2006-01-02 15:04:05Z"))
}

// oneDaemon counts processes: a second daemon, or a flannel of the same name, writes other routes and the same rules, so
// that neither is ever in step for long.
func oneDaemon(s Snapshot) Finding {
	if !s.Processes.Known {
		return s.Processes.missing()
	}
	var all []string
	for _, p := range s.Processes.Value {
		all = append(all, fmt.Sprintf("%s (pid %d)", p.Name, p.PID))
	}
	switch len(all) {
	case 0:
		return ok("none is seen among the processes that are visible from here")
	case 1:
		return ok("%s", all[0])
	}
	return fail("Stop all but one: they undo each other's work.", "%s", strings.Join(all, ", "))
}

// subnetFile matters because the CNI plugin reads nothing else: pods come up with what stands there, right or wrong.
func subnetFile(s Snapshot) Finding {
	const restart = "Start flanneld: it writes the file once it has a subnet. Pods cannot start before."
	if !s.Env.Known && s.Env.WhyNot == "" {
		return s.Env.missing()
	}
	if !s.Env.Known {
		return fail("Delete the file: flanneld writes it again.", "%s", s.Env.WhyNot)
	}
	env, n := s.Env.Value, s.node()
	if !env.V4Subnet.IsValid() && !env.V6Subnet.IsValid() {
		return fail(restart, "there is no %s", s.SubnetFile)
	}
	if n == nil {
		return skip("%s has %s; the daemon has no lease to compare it with", s.SubnetFile, join(env.V4Subnet, env.V6Subnet))
	}
	if n.SubnetFile != s.SubnetFile {
		return skip("the daemon writes another file: %s", n.SubnetFile)
	}
	for _, net := range n.Networks {
		network, own := env.V4Network, env.V4Subnet
		if net.Subnet.Addr().Is6() {
			network, own = env.V6Network, env.V6Subnet
		}
		if own != net.Subnet || network != net.Network {
			return fail("See whether something else writes it, such as a second flanneld or a copy from another node.",
				"the file says %s of %s, the daemon %s of %s", show(own), show(network), net.Subnet, net.Network)
		}
	}
	if env.MTU != n.MTU {
		return fail("See whether something else writes it.", "the file says FLANNEL_MTU=%d, the daemon %d", env.MTU, n.MTU)
	}
	return ok("%s, MTU %d", join(env.V4Subnet, env.V6Subnet), env.MTU)
}

// maxNamed bounds how many things of a kind one finding names.
const maxNamed = 5

// noneLeftOut is no failure of this node, which does well to leave such a peer out; its pods and ours do not meet, though.
func noneLeftOut(s Snapshot) Finding {
	r := s.report()
	if r == nil || !r.PeersKnown {
		return skip("the daemon does not know the peers, or does not answer")
	}
	var out []string
	for _, p := range r.Peers {
		if p.State == status.LeftOut || p.State == status.Behind && p.Reason != "" {
			out = append(out, p.Name+": "+p.Reason)
		}
	}
	if len(out) == 0 {
		return ok("%d peers", len(r.Peers))
	}
	return warn("Correct the lease that is named, or the configuration of the node that published it; delete it if nobody owns it.",
		"%d of %d: %s", len(out), len(r.Peers), several(out))
}

// noneRetained only warns: what is retained works, and goes by itself. But somebody may have made a mistake.
func noneRetained(s Snapshot) Finding {
	r := s.report()
	switch {
	case r == nil || !r.PeersKnown:
		return skip("the daemon does not know the peers, or does not answer")
	case r.Retained == nil:
		return ok("none is")
	case r.Retained.Count == 0:
		return warn("Find out who deleted it; flanneld puts it back if its subnet is free.", "the store lost this node's own lease with many others")
	}
	return warn("Find out who took them out of the store, or restore it; if they are gone for good: flanneld accept-withdrawal.",
		"%d are retained until %s or later (%s)", r.Retained.Count, r.Retained.Until.UTC().Format("2006-01-02 15:04:05Z"), r.Retained.Cause)
}

// storeAnswers only warns: an outage freezes the network as it is, and harms nobody until something changes.
func storeAnswers(s Snapshot) Finding {
	r := s.report()
	switch {
	case r == nil:
		return skip("the daemon does not answer")
	case r.Outage != "":
		return warn("Pods go on talking as they do; look at the store, the way to it and the credentials.", "%s: %s", r.Store, oneLine(r.Outage))
	}
	return ok("%s", r.Store)
}

// mtuFits finds what lets small packets pass and large ones vanish. Only this machine's own interfaces can be judged: a
// smaller MTU further on shows itself to nobody but the packets.
func mtuFits(s Snapshot) Finding {
	n := s.node()
	if n == nil {
		return skip("only the daemon knows the underlay, and it has no lease or does not answer")
	}
	const lower = "Set Backend.MTU to what the underlay really carries, and start the pods anew: they keep the MTU that they began with."
	under := n.Underlay.MTU
	if in := s.byName(n.Underlay.Name); in != 0 {
		under = in
	}
	for _, d := range s.tunnels() {
		if d.MTU+encap.VXLAN(d.OuterIsIPv6) > under {
			return fail(lower, "%s has MTU %d, which with the tunnel's %d is more than the %d of %s", d.Name, d.MTU, encap.VXLAN(d.OuterIsIPv6), under, n.Underlay.Name)
		}
		if env := s.Env.Value.MTU; env > d.MTU {
			return fail("See whether something else writes the subnet file.", "FLANNEL_MTU is %d, and the MTU of %s only %d", env, d.Name, d.MTU)
		}
	}
	if n.MTU > under {
		return fail(lower, "pods get MTU %d, and %s has only %d", n.MTU, n.Underlay.Name, under)
	}
	return ok("%d for pods, %d on %s (whether what is behind it carries that much cannot be seen from here)", n.MTU, under, n.Underlay.Name)
}

// betweenNodes is here so that its code leads people to the answer, though nothing on the node can tell.
func betweenNodes(s Snapshot) Finding {
	n := s.node()
	_, overlay, found := s.hns()
	switch {
	case n != nil && n.Backend != "host-gw", n == nil && found && overlay:
		return skip("only host-gw sends pods' addresses over the wire")
	case n == nil && !found:
		return skip("which backend is in use is not known: the daemon has no lease or does not answer")
	}
	const need = "a cloud wants a route for each node's subnet (user-defined routes), and its check of addresses off (AWS: source/destination check; Azure: IP forwarding; Google: canIpForward)"
	if by := s.Machine.Value.String(); by != "" {
		return skip("only what lies between the nodes knows, and this machine is of %s: %s", by, need)
	}
	return skip("only what lies between the nodes knows: %s", need)
}

// byName is the MTU of an interface, 0 where it is not known.
func (s Snapshot) byName(name string) int {
	for _, in := range s.Interfaces.Value.Interfaces {
		if in.Name == name {
			return in.MTU
		}
	}
	return 0
}

func several(all []string) string {
	if n := len(all) - maxNamed; n > 0 {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(all, "; ")
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

func show(p netip.Prefix) string {
	if !p.IsValid() {
		return "nothing"
	}
	return p.String()
}

// join names those that there are.
func join(all ...netip.Prefix) string {
	var texts []string
	for _, p := range all {
		if p.IsValid() {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, ", ")
}
