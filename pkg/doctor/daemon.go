package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
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
		{"FL102", "no two flannelds on the node have the same subnet file",
			"two flannelds on the node have the same subnet file", anySystem, nil, oneDaemon},
		{"FL103", "the subnet file exists and matches the daemon's lease",
			"the subnet file is missing, or does not match the daemon's lease", anySystem, nil, subnetFile},
		{"FL104", "no peer is rejected, and the system refuses no entry of a peer",
			"peers are rejected, or the system refuses an entry of them", anySystem, needs{peersKnown}, noPeerRejected},
		{"FL105", "the store of leases answers",
			"the store of leases does not answer", anySystem, needs{daemonAnswers}, storeAnswers},
		{"FL106", "the MTU of pods fits the tunnel and the underlay",
			"the MTU of pods does not fit the tunnel and the underlay", anySystem, needs{leaseKnown}, mtuFits},
		{"FL107", "the network of the nodes forwards packets with pods' addresses (host-gw)",
			"the network of the nodes drops packets with pods' addresses (host-gw)", anySystem, nil, nodesForward},
		{"FL108", "no peer is retained because the store lost its lease",
			"peers are retained because the store lost their leases", anySystem, needs{peersKnown}, noPeerRetained},
		{"FL109", "the senders of datagrams are the peers of the packets in them (udp)",
			"datagrams were dropped: they are malformed, or not from the peers of the packets in them (udp)", anySystem, needs{daemonAnswers}, datagramsFromPeers},
		{"FL110", "the network configuration in the store is in force",
			"the network configuration in the store is not in force", anySystem, needs{daemonAnswers}, configInForce},
		{"FL111", "a start of flanneld would choose the interface that is in use",
			"a start of flanneld would choose another interface than the one in use", anySystem, needs{leaseKnown}, sameAtStart},
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

// oneDaemon finds two flannelds or flannels with the same subnet file. They write different
// routes and the same firewall rules, so that they keep undoing each other's changes. Those
// with different files are meant for different networks (running.md).
func oneDaemon(s Snapshot) Finding {
	var all, conflicting, unknown []string
	for _, p := range s.Processes.Value {
		name := fmt.Sprintf("%s (pid %d)", p.Name, p.PID)
		if p.SubnetFile != "" {
			name += " with " + p.SubnetFile
		}
		if p.WhyNot != "" {
			name += " (not certain: " + p.WhyNot + ")"
		}
		all = append(all, name)
		conflicts := func(q Process) bool { return q.PID != p.PID && q.WhyNot == "" && q.SubnetFile == p.SubnetFile }
		mayConflict := func(q Process) bool {
			return q.PID != p.PID && (q.SubnetFile == p.SubnetFile || q.SubnetFile == "" || p.SubnetFile == "")
		}
		switch {
		case p.WhyNot == "" && slices.ContainsFunc(s.Processes.Value, conflicts):
			conflicting = append(conflicting, name)
		case p.WhyNot != "" && slices.ContainsFunc(s.Processes.Value, mayConflict):
			unknown = append(unknown, name)
		}
	}
	switch {
	case len(conflicting) > 0:
		return fail("Of those with the same subnet file, stop all but one: they undo each other's changes.", "%s", strings.Join(conflicting, ", "))
	case !s.Processes.Known:
		return processesKnown(s)
	case len(unknown) > 0:
		return undecidable("not known whether they have the same subnet file: %s", several(unknown))
	case len(all) > 0:
		return ok("%s", several(all))
	}
	return ok("no flanneld among the visible processes")
}

// subnetFile compares the subnet file with the daemon's lease. The CNI plugin configures
// pods from this file alone. A file that could not be read may be right: nobody should
// delete it.
func subnetFile(s Snapshot) Finding {
	env := s.Env.Value
	switch {
	case s.EnvMalformed:
		return fail("Delete the file: flanneld writes it again.", "%s", s.Env.WhyNot)
	case !s.Env.Known:
		return s.Env.missing()
	case env.IsZero():
		return fail("Start flanneld: it writes the file when it has a subnet. Pods cannot start without the file.",
			"%s does not exist", s.SubnetFile)
	}
	if missing := leaseKnown(s); missing.Verdict != "" {
		return skip("%s has %s; it cannot be compared: %s", s.SubnetFile, join(env.V4Subnet, env.V6Subnet), missing.Seen)
	}
	n := s.node()
	if n.SubnetFile != s.SubnetFile {
		return skip("the daemon writes another file: %s", n.SubnetFile)
	}
	var different []string
	for _, ipv6 := range []bool{false, true} {
		if file, daemon := subnetOf(networksOf(env), ipv6), subnetOf(n.Networks, ipv6); file != daemon {
			different = append(different, fmt.Sprintf("the file has %s, the daemon %s", file, daemon))
		}
	}
	if env.MTU != n.MTU {
		different = append(different, fmt.Sprintf("the file has FLANNEL_MTU=%d, the daemon %d", env.MTU, n.MTU))
	}
	if len(different) > 0 {
		return fail("Find out whether another program writes the file, such as a second flanneld, or whether "+
			"it is a copy from another node.", "%s", several(different))
	}
	return ok("%s, MTU %d", join(env.V4Subnet, env.V6Subnet), env.MTU)
}

// subnetOf returns the subnet and the network of an address family for a text.
func subnetOf(networks []status.Network, ipv6 bool) string {
	for _, n := range networks {
		if n.Subnet.IsValid() && n.Subnet.Addr().Is6() == ipv6 {
			return fmt.Sprintf("%s of %s", n.Subnet, cmp.Or(join(n.Network), "no network"))
		}
	}
	return fmt.Sprintf("no %s subnet", familyName(ipv6))
}

// maxNamed limits how many items of a list a Finding names.
const maxNamed = 5

// noPeerRejected only warns, because the problem is that of a peer: its lease is invalid, or the
// system refuses an entry of it. The pods of both nodes do not reach each other. Nobody
// must delete the lease of a peer with a refused entry: with etcd, the peer's flanneld would end.
func noPeerRejected(s Snapshot) Finding {
	r := s.report()
	var rejected, refused, seen, fixes []string
	for _, p := range r.Peers {
		switch {
		case p.State == status.Rejected:
			rejected = append(rejected, p.Name+": "+p.Reason)
		case p.State == status.Behind && p.Reason != "": // without a Reason, because the pass failed (FL101)
			refused = append(refused, p.Name+": "+p.Reason)
		}
	}
	if len(rejected) > 0 {
		seen = append(seen, fmt.Sprintf("%d of %d are rejected: %s", len(rejected), len(r.Peers), several(rejected)))
		fixes = append(fixes, "Correct the lease of a rejected peer, or the configuration of the node that published it; "+
			"delete the lease if no node owns it.")
	}
	if len(refused) > 0 {
		seen = append(seen, fmt.Sprintf("the system refuses an entry of %d of %d: %s", len(refused), len(r.Peers), several(refused)))
		fixes = append(fixes, "For an entry that the system refuses, correct what the reason names, and keep the peer's lease. "+
			"flanneld tries again by itself.")
	}
	if len(seen) == 0 {
		return ok("%d peers", len(r.Peers))
	}
	return warn(strings.Join(fixes, " "), "%s", strings.Join(seen, "; "))
}

// noPeerRetained only warns: retained peers work, and are removed by
// themselves. But the leases may be missing by mistake.
func noPeerRetained(s Snapshot) Finding {
	lost := s.report().Retained
	if lost == nil {
		return ok("none")
	}
	fix := "Find out who deleted the lease; flanneld restores it if its subnet is free."
	var seen []string
	if lost.Count > 0 {
		fix = "Find out who deleted the leases, or restore the store; if these nodes are gone for good, run flanneld accept-withdrawal."
		seen = append(seen, fmt.Sprintf("%d peers, until %s or later (%s)", lost.Count, utc(lost.Until), lost.Cause))
	}
	if lost.Own {
		if lost.Count > 0 {
			fix += " With that, this node's flanneld ends."
		}
		seen = append(seen, "the store lost this node's lease together with many others")
	}
	return warn(fix, "%s", several(seen))
}

// storeAnswers only warns: during an outage the network stays as it is, and
// works until something changes.
func storeAnswers(s Snapshot) Finding {
	r := s.report()
	if r.Outage != "" {
		return warn("Check the store, the connection to it, the credentials and their permissions. Existing connectivity "+
			"between pods is not affected.", "%s", oneLine(r.Outage))
	}
	return ok("%s", r.Store)
}

// configInForce only warns of a configuration that nodes still try, or that waits for the
// next start by --config-follow=false. One that this node refuses is worse: at its next
// start, the daemon cannot join because of it, or adopts it unexpectedly.
func configInForce(s Snapshot) Finding {
	r := s.report()
	switch {
	case r.Pending == "":
		return ok("%s", r.Store)
	case r.Refused:
		return fail("Correct the configuration, or restore the former one.", "%s", oneLine(r.Pending))
	}
	return warn("Wait, or restore the former configuration to stop the rollout. Only with --config-follow=false: "+
		"restart flanneld on the nodes.", "%s", oneLine(r.Pending))
}

// mtuFits finds an MTU that is too large, with which small packets pass and
// large ones are dropped. It does not know the MTU of links beyond this machine's
// interfaces. s.tunnels has tunnels on Linux only. What is not known comes last, so that it
// does not hide what is wrong.
func mtuFits(s Snapshot) Finding {
	n := s.node()
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
	hasTunnel := slices.ContainsFunc(n.Devices, func(d status.Device) bool { return d.Name != n.Underlay.Name })
	if missing := devicesKnown(s); missing.Verdict != "" && hasTunnel && s.OS == "linux" {
		return missing
	}
	unknown := "the MTU of links beyond it is not known"
	if missing := subnetFileExists(s); missing.Verdict != "" && len(s.tunnels()) > 0 {
		unknown += ", nor is FLANNEL_MTU: " + missing.Seen
	}
	return ok("%d for pods, %d on %s (%s)", n.MTU, under, n.Underlay.Name, unknown)
}

// lowerMTU begins the fix for pods whose packets are too large for an underlay that
// carries mtu bytes; "": it is not known how many. Only some backends have a key for it;
// the others take the MTU of the underlay's interface. Windows nodes do not support the key.
func (s Snapshot) lowerMTU(backend, underlay, mtu string) string {
	if s.OS == "linux" && dataplane.TraitsOfBackend(backend).MTUKey {
		return "Set Backend.MTU to " + cmp.Or(mtu, "the real MTU of the underlay") + " in the network configuration"
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
		return skip("%s", because("the backend is not known", leaseKnown(s)))
	}
	return skip("cannot be checked on the node%s: in a cloud, add a route for each node's subnet (user-defined "+
		"routes), and allow packets with other addresses than the node's (AWS: disable the source/destination "+
		"check; Azure: enable IP forwarding; Google: canIpForward)",
		s.onMachine())
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
