// The checks in this file are about packets that come from somebody else than a node or a
// pod of the cluster, as the daemon has counted them. Their rows, in daemon.go and linux.go,
// need daemonAnswers: s.report() is not nil.

package doctor

import (
	"fmt"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

// datagramsFromPeers is the check FL109: it finds datagrams that the udp backend drops, for
// two of the reasons in dataplane.Forwarded.Dropped: "foreign" (from another sender than the
// peer of the packet inside) and "malformed" (no IPv4 packet inside). Another address or
// port than that in the peer's lease comes from NAT or a rewritten firewall rule;
// other senders scan the port, or use another network's configuration. A few are
// normal when a node joins, and sends before its lease is known.
func datagramsFromPeers(s Snapshot) Finding {
	f := s.report().Forwarded
	if f == nil {
		return firstReason(s.backendIs("udp"), undecidable("flanneld forwards no packets: see FL101"))
	}
	var seen, fixes []string
	if n := f.Dropped["foreign"]; n > 0 {
		seen = append(seen, fmt.Sprintf("%d packets were dropped since the start, because they did not come from the address and port of the peer that has their source", n))
		fixes = append(fixes, "A few packets of others are normal when nodes join. If pods of a peer are not reached, set --public-ip on that node to the address that others see, "+
			"and exempt Backend.Port from NAT. Otherwise allow the port to nodes only.")
	}
	if n := f.Dropped["malformed"]; n > 0 {
		seen = append(seen, fmt.Sprintf("%d datagrams were dropped since the start, because they contained no IPv4 packet", n))
		fixes = append(fixes, "Allow Backend.Port to nodes only, and make sure that all of them use udp.")
	}
	if len(seen) > 0 {
		return warn(strings.Join(fixes, " "), "%s", several(seen))
	}
	return ok("%d packets received", f.Received.Packets)
}

// nobodyForges is the check FL211: what the guard of the pod network has found, and whether
// it works. If GuardReport.Enforce is set, the guard drops such packets, else it counts them.
// Waiting says why the guard counts although it should drop; "": counting is what was
// configured. A daemon without a lease may report a guard, too: that of an earlier run.
func nobodyForges(s Snapshot) Finding {
	g := s.report().Guard
	if g == nil {
		return firstReason(leaseKnown(s), skip("there is no guard: it is off, or the backend is one whose packets others route"))
	}
	const look = "The log has some of these packets (cause forged-packet); Documentation/guard.md explains the rules. "
	dropped, counted := status.Found(g) // as texts; "": none
	found := foundByGuard(g)
	behind := func(first string) string { return strings.Join(append([]string{first}, found...), "; ") }
	switch {
	case g.Problem != "":
		return warn("If the kernel refuses rules, load the modules nf_tables, nft_fib_inet, nft_log, nft_limit and nfnetlink_log. The guard tries again by itself; without a guard, set Guard to off.",
			"%s", behind("the guard does not work as it should: "+g.Problem))
	case g.Waiting != "":
		return warn(look+"If a node sends from another address than the one in its lease, give --tunnel-source there, or add its address to GuardSources. If somebody else forges these packets, set GuardTrial to 0.",
			"%s", behind("the guard drops nothing yet: it "+g.Waiting))
	case dropped+counted == "":
		return ok("none were found")
	case !g.Enforce && counted == "":
		return ok("%s", behind("none that were not dropped"))
	case !g.Enforce:
		return warn(look+"If none of them are legitimate, set Guard to enforce.", "%s", strings.Join(found, "; "))
	case dropped == "":
		return ok("%s", behind("none were dropped"))
	case g.OfPeer != "":
		return warn(look+"If it is that node's own, give --tunnel-source there, or add its address to GuardSources; otherwise somebody uses the node's name.",
			"%s; the last one that a node may have sent: %s", strings.Join(found, "; "), g.OfPeer)
	}
	return ok("%s", strings.Join(found, "; "))
}

// foundByGuard describes what the guard has found, those packets first that its present
// mode is about. It has counted packets without dropping them while it did not enforce.
func foundByGuard(g *dataplane.GuardReport) (found []string) {
	dropped, counted := status.Found(g)
	texts := []struct{ what, packets string }{{"found, and not dropped", counted}, {"dropped when the guard enforced", dropped}}
	if g.Enforce {
		texts = []struct{ what, packets string }{{"dropped", dropped}, {"found before the guard enforced", counted}}
	}
	for _, t := range texts {
		if t.packets != "" {
			found = append(found, t.what+": "+t.packets)
		}
	}
	return found
}
