package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

// daemonChecks returns the checks of what the daemon reports about itself. The columns are the
// fields of Check: code, what is right, what is wrong, system, what must be known, and the
// function below. If something that must be known is not, the function is not called, and
// the check is skipped or undecided (see needs). nil: the function decides alone.
func daemonChecks() []Check {
	return []Check{
		{"FL101", "the daemon runs and the network is up to date",
			"the daemon does not run, or the network is not up to date", anySystem, needs{daemonKnown}, upToDate},
		{"FL102", "no more than one flanneld runs on the node",
			"more than one flanneld runs on the node", anySystem, needs{processesKnown}, oneDaemon},
		{"FL103", "the subnet file exists and matches the daemon's lease",
			"the subnet file is missing, or does not match the daemon's lease", anySystem, nil, subnetFile},
		{"FL104", "no peer is rejected",
			"peers are rejected", anySystem, needs{peersKnown}, noPeerRejected},
		{"FL105", "the store of leases answers",
			"the store of leases does not answer", anySystem, nil, storeAnswers},
		{"FL106", "the MTU of pods fits the tunnel and the underlay",
			"the MTU of pods does not fit the tunnel and the underlay", anySystem, nil, mtuFits},
		{"FL107", "the network of the nodes forwards packets with pods' addresses (host-gw)",
			"the network of the nodes drops packets with pods' addresses (host-gw)", anySystem, nil, nodesForward},
		{"FL108", "no peer is retained because the store lost its lease",
			"peers are retained because the store lost their leases", anySystem, needs{peersKnown}, noPeerRetained},
		{"FL109", "the senders of datagrams are the peers of the packets in them (udp)",
			"datagrams were dropped: they are malformed, or not from the peers of the packets in them (udp)", anySystem, nil, datagramsFromPeers},
		{"FL110", "the network configuration in the store is in force",
			"the network configuration in the store is not in force", anySystem, nil, configInForce},
		{"FL111", "a start of flanneld would choose the interface that is in use",
			"a start of flanneld would choose another interface than the one in use", anySystem, nil, sameAtStart},
	}
}

// upToDate is the first check, because the daemon's own report names most
// causes. Daemon is known if somebody asked the daemon; Report is nil if it gave no
// answer, and Problem is then why. s.report() is the same Report.
func upToDate(s Snapshot) Finding {
	r := s.Daemon.Value.Report
	switch {
	case r == nil:
		return fail("Start flanneld, or see in its log why it stopped or hangs.", "%s", s.Daemon.Value.Problem)
	case !r.Ready:
		return fail("Correct the named cause; flanneld retries by itself.",
			"not up to date since %s: %s", utc(r.Since), oneLine(r.Problem))
	}
	return ok("up to date since %s", utc(r.Since))
}

// oneDaemon finds a second flanneld or flannel. Two of them write different routes and
// the same firewall rules, so that they keep undoing each other's changes.
func oneDaemon(s Snapshot) Finding {
	var daemons []string
	for _, p := range s.Processes.Value {
		daemons = append(daemons, fmt.Sprintf("%s (pid %d)", p.Name, p.PID))
	}
	switch len(daemons) {
	case 0:
		return ok("no flanneld among the visible processes")
	case 1:
		return ok("%s", daemons[0])
	}
	return fail("Stop all but one: they undo each other's changes.", "%s", strings.Join(daemons, ", "))
}

// subnetFile compares the subnet file with the daemon's lease. The CNI plugin
// configures pods from this file alone. Env is its content (see Fact): without a
// WhyNot, nobody tried to read it, and missing returns that Finding.
func subnetFile(s Snapshot) Finding {
	const restart = "Start flanneld: it writes the file when it has a subnet. Pods cannot start without the file."
	switch {
	case s.Env.Known: // compared below; a missing file is known, too
	case s.Env.WhyNot == "":
		return s.Env.missing()
	default:
		return fail("Delete the file: flanneld writes it again.", "%s", s.Env.WhyNot)
	}
	env, n := s.Env.Value, s.node() // the file's and the daemon's
	if !env.V4Subnet.IsValid() && !env.V6Subnet.IsValid() {
		return fail(restart, "%s does not exist", s.SubnetFile)
	}
	if n == nil {
		return skip("%s has %s; it cannot be compared, because the daemon has no lease or does not answer",
			s.SubnetFile, join(env.V4Subnet, env.V6Subnet))
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
			return fail("Find out whether another program writes the file, such as a second flanneld, or whether "+
				"it is a copy from another node.",
				"the file has %s of %s, the daemon %s of %s", cmp.Or(join(own), "nothing"),
				cmp.Or(join(network), "nothing"), net.Subnet, net.Network)
		}
	}
	if env.MTU != n.MTU {
		return fail("Find out whether another program writes the file.",
			"the file has FLANNEL_MTU=%d, the daemon %d", env.MTU, n.MTU)
	}
	return ok("%s, MTU %d", join(env.V4Subnet, env.V6Subnet), env.MTU)
}

// maxNamed limits how many items of a list a Finding names.
const maxNamed = 5

// noPeerRejected only warns, because the problem is in the peer's lease and not
// on this node. The pods of both nodes do not reach each other.
func noPeerRejected(s Snapshot) Finding {
	r := s.report()
	var rejected []string
	for _, p := range r.Peers {
		// A peer that is behind without a reason of its own is so because the pass failed (FL101).
		if p.State == status.Rejected || p.State == status.Behind && p.Reason != "" {
			rejected = append(rejected, p.Name+": "+p.Reason)
		}
	}
	if len(rejected) == 0 {
		return ok("%d peers", len(r.Peers))
	}
	return warn("Correct the named lease, or the configuration of the node that published it; delete the lease if "+
		"no node owns it.",
		"%d of %d: %s", len(rejected), len(r.Peers), several(rejected))
}

// noPeerRetained only warns: retained peers work, and are removed by
// themselves. But the leases may be missing by mistake.
func noPeerRetained(s Snapshot) Finding {
	r := s.report()
	switch {
	case r.Retained == nil:
		return ok("none")
	case r.Retained.Count == 0: // Retained.Own alone
		return warn("Find out who deleted the lease; flanneld restores it if its subnet is free.",
			"the store lost this node's lease together with many others")
	}
	return warn("Find out who deleted the leases, or restore the store; if these nodes are gone for good, run "+
		"flanneld accept-withdrawal.",
		"%d peers, until %s or later (%s)", r.Retained.Count, utc(r.Retained.Until),
		r.Retained.Cause)
}

// storeAnswers only warns: during an outage the network stays as it is, and
// works until something changes.
func storeAnswers(s Snapshot) Finding {
	r := s.report()
	switch {
	case r == nil:
		return skip("the daemon does not answer")
	case r.Outage != "":
		return warn("Check the store, the connection to it and the credentials. Existing connectivity between pods "+
			"is not affected.",
			"%s: %s", r.Store, oneLine(r.Outage))
	}
	return ok("%s", r.Store)
}

// configInForce only warns of a configuration that nodes still try. One that this node
// refuses is worse: at its next start, the daemon cannot join because of it, or adopts it
// unexpectedly.
func configInForce(s Snapshot) Finding {
	r := s.report()
	switch {
	case r == nil:
		return skip("the daemon does not answer")
	case r.Pending == "":
		return ok("%s", r.Store)
	case r.Refused:
		return fail("Correct the configuration, or restore the former one; flanneld follows at once.", "%s", oneLine(r.Pending))
	}
	return warn("Wait, or restore the former configuration to stop the rollout.", "%s", oneLine(r.Pending))
}

// mtuFits finds an MTU that is too large, with which small packets pass and
// large ones are dropped. It knows the MTU of this machine's interfaces only,
// and not that of links further on. There are tunnels on Linux only.
func mtuFits(s Snapshot) Finding {
	n := s.node()
	if n == nil {
		return skip("the underlay is not known: the daemon has no lease or does not answer")
	}
	lower := s.lowerMTU(n.Backend, n.Underlay.Name, "") + ", and restart the pods: the MTU of a running pod does not change."
	under := n.Underlay.MTU // as of the daemon's last pass, unless the interface can be read now
	for _, in := range s.Interfaces.Value.Interfaces {
		if in.Name == n.Underlay.Name {
			under = cmp.Or(in.MTU, under)
		}
	}
	for _, d := range s.tunnels() {
		if d.MTU+d.overhead() > under {
			return fail(lower,
				"the MTU of %s is %d; with %d bytes for the tunnel's headers, that is more than the %d of %s", d.Name,
				d.MTU, d.overhead(), under, n.Underlay.Name)
		}
		if env := s.Env.Value.MTU; env > d.MTU {
			return fail("Find out whether another program writes the subnet file.",
				"FLANNEL_MTU is %d, but the MTU of %s is %d", env, d.Name, d.MTU)
		}
	}
	if n.MTU > under {
		return fail(lower, "the MTU of pods is %d, but that of %s is %d", n.MTU, n.Underlay.Name, under)
	}
	return ok("%d for pods, %d on %s (the MTU of links beyond it is not known)", n.MTU, under, n.Underlay.Name)
}

// lowerMTU begins the fix for pods whose packets are too large for an underlay that
// carries mtu bytes; "": it is not known how many. Only some backends have a key for it;
// the others take the MTU of the underlay's interface. Windows nodes do not support the key.
func (s Snapshot) lowerMTU(backend, underlay, mtu string) string {
	if s.OS == "linux" && dataplane.TraitsOfBackend(backend).MTUKey {
		return "Set Backend.MTU to " + cmp.Or(mtu, "the real MTU of the underlay")
	}
	command := fmt.Sprintf("ip link set dev %s mtu %s", underlay, cmp.Or(mtu, "…"))
	if s.OS == "windows" {
		command = fmt.Sprintf(`netsh interface ipv4 set subinterface "%s" mtu=%s store=persistent`, underlay, cmp.Or(mtu, "…"))
	}
	return fmt.Sprintf("Set the MTU of %s to %s, on all nodes (%s, and in the host's network configuration)", underlay,
		cmp.Or(mtu, "what the network between the nodes really carries"), command)
}

// nodesForward is always skipped, because the cause is not on the node. It
// exists for its text, which says what to check, and on which machine or cloud
// (onMachine). Without a report, the HNS network, if any, shows the backend.
func nodesForward(s Snapshot) Finding {
	n := s.node()
	_, overlay, found := s.hns()
	switch {
	case n != nil && n.Backend != "host-gw", n == nil && found && overlay:
		return skip("only host-gw sends packets with pods' addresses to the underlay")
	case n == nil && !found:
		return skip("the backend is not known: the daemon has no lease or does not answer")
	}
	return skip("cannot be checked on the node%s: in a cloud, add a route for each node's subnet (user-defined "+
		"routes), and allow packets with other addresses than the node's (AWS: disable the source/destination "+
		"check; Azure: enable IP forwarding; Google: canIpForward)",
		s.onMachine())
}

// datagramsFromPeers finds datagrams that the udp backend drops: foreign and malformed
// ones, of the reasons of dataplane.Forwarded. Another address or
// port than that in the peer's lease comes from NAT or a rewritten firewall rule;
// other senders scan the port, or use another network's configuration. A few are
// normal when a node joins, and sends before its lease is known.
func datagramsFromPeers(s Snapshot) Finding {
	var f *dataplane.Forwarded
	if r := s.Daemon.Value.Report; r != nil {
		f = r.Forwarded
	}
	switch {
	case f == nil:
		return skip("only udp forwards packets in the daemon")
	case f.Dropped["foreign"] > 0:
		return warn("A few are normal when nodes join. If pods of a peer are not reached, set --public-ip on that node to the address that others see, and exempt "+
			"Backend.Port from NAT. Otherwise allow the port to nodes only.",
			"%d packets were dropped since the start, because they did not come from the address and port of the peer that has their source", f.Dropped["foreign"])
	case f.Dropped["malformed"] > 0:
		return warn("Allow Backend.Port to nodes only, and make sure that all of them use udp.",
			"%d datagrams were dropped since the start, because they contained no IPv4 packet", f.Dropped["malformed"])
	}
	return ok("%d packets received", f.Received.Packets)
}

// nobodyForges is FL211, whose row is in linux.go: what the guard of the pod network has
// found, and whether it works.
func nobodyForges(s Snapshot) Finding {
	var g *dataplane.GuardReport
	if r := s.Daemon.Value.Report; r != nil {
		g = r.Guard
	}
	if g == nil {
		return skip("there is no guard: it is off, or the backend is one whose packets others route")
	}
	dropped, counted := status.Found(g)
	const look = "The log has some of these packets (cause forged-packet); Documentation/guard.md explains the rules. "
	switch {
	case g.Problem != "":
		return warn("The kernel needs the modules nf_tables, nft_fib_inet, nft_log, nft_limit and nfnetlink_log; without a guard, set Guard to off.",
			"the guard does not work: %s", g.Problem)
	case g.Waiting != "":
		return warn(look+"If a node sends from another address than the one in its lease, give --tunnel-source there, or add its address to GuardSources. If somebody else forges these packets, set GuardTrial to 0.",
			"the guard drops nothing yet: it %s", g.Waiting)
	case dropped+counted == "":
		return ok("none were found")
	case !g.Enforce && counted == "":
		return ok("none that were not dropped; dropped when the guard enforced: %s", dropped)
	case !g.Enforce:
		return warn(look+"If none of them are legitimate, set Guard to enforce.", "found, and not dropped: %s", counted)
	case dropped == "":
		return ok("none were dropped; found before the guard enforced: %s", counted)
	}
	if g.OfPeer != "" {
		return warn(look+"If it is that node's own, give --tunnel-source there, or add its address to GuardSources; otherwise somebody uses the node's name.",
			"dropped: %s; the last one that a node may have sent: %s", dropped, g.OfPeer)
	}
	return ok("dropped: %s", dropped)
}

// several joins the first maxNamed texts, and counts the others.
func several(texts []string) string {
	if n := len(texts) - maxNamed; n > 0 {
		texts = append(texts[:maxNamed:maxNamed], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(texts, "; ")
}

// utc formats a time for reports from several nodes.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// oneLine joins the lines of a text.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

// join joins the valid prefixes.
func join(prefixes ...netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		if p.IsValid() {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, ", ")
}
