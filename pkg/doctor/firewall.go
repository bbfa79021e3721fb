package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"flannel/pkg/status"
)

// The checks of this file do not evaluate a whole rule set, which may use sets
// and marks. They find the rules with which hosts commonly drop flanneld's
// packets.

// filters returns the filter tables of iptables for the families in use.
func (s Snapshot) filters() (filters []filter) {
	for _, variants := range inUse(s, s.Linux.IPTables, s.Linux.IP6Tables) {
		for _, l := range variants.Value {
			filters = append(filters, parseFilter(l.Lines))
		}
	}
	return filters
}

// forwardAccepts finds a rule or a policy that drops the pods' packets because
// no rule before it accepts them. A packet must pass all tables: what one table
// of nftables or variant of iptables drops, no other can accept.
func forwardAccepts(s Snapshot) Finding {
	const before = "Delete the rule, or move it to the end of FORWARD, unless it is meant to drop pods' packets. " +
		"flanneld does not insert its rules before those of others."
	const enable = "Leave --iptables-forward-rules on (the default), and see in flanneld status whether the part " +
		"firewall has errors; or accept the pod network in FORWARD yourself."
	for _, f := range s.filters() {
		forward := f.chain("FORWARD")
		jump := slices.IndexFunc(forward, func(r rule) bool { return strings.HasPrefix(r.target, "FLANNEL-FWD") })
		drop := slices.IndexFunc(forward, func(r rule) bool {
			return r.drops() && !r.narrow && r.protocol == "" && r.ports == ""
		})
		switch {
		case drop >= 0 && jump > drop:
			return fail(before, "%q comes before the rule that accepts the pods' packets", forward[drop].text)
		case drop >= 0 && jump < 0:
			return fail(enable, "%q drops the pods' packets, and there is no jump to FLANNEL-FWD", forward[drop].text)
		case jump < 0 && f.policy["FORWARD"] == "DROP":
			return fail(enable, "the policy of FORWARD is DROP (Docker sets it), and there is no jump to FLANNEL-FWD")
		}
	}
	chains, _ := parseNFT(s.Linux.NFTables.Value)
	for _, c := range chains {
		if c.hook == "forward" && c.dropsByDefault() && !strings.Contains(strings.Join(c.rules, "\n"), "accept") {
			return warn("Accept the pod network in that chain: a rule of flanneld in another table cannot prevent "+
				"the drop.",
				"chain %s of table %s drops forwarded packets", c.name, c.table)
		}
	}
	return ok("found no such rule%s", s.nftUnknown())
}

// tunnelAccepted fails if a rule drops the packets of a tunnel. It only warns if a
// firewall drops by default, because a rule that it does not understand may
// accept them, for example one with a set or a mark.
func tunnelAccepted(s Snapshot) (finding Finding) {
	for _, packet := range s.outers() {
		if finding = s.accepted(packet); finding.Verdict != OK {
			break
		}
	}
	return finding
}

// outers returns the packets that flanneld's tunnel devices receive.
func (s Snapshot) outers() (packets []outer) {
	if tunnels := s.tunnels(); len(tunnels) > 0 { // all are of one type and have one port
		if tunnels[0].Type == "ipip" {
			return []outer{{protocol: ipencap}}
		}
		return []outer{{"udp", tunnels[0].Port}}
	}
	n := s.node()
	switch {
	case n != nil && n.Backend == "udp":
		return forwarded(*n)
	case n == nil || n.Backend != wireGuard:
		return nil
	}
	for _, network := range n.Networks {
		var published struct{ Port int }
		if json.Unmarshal(network.Data, &published) == nil && published.Port > 0 && !slices.Contains(packets, outer{"udp", published.Port}) {
			packets = append(packets, outer{"udp", published.Port})
		}
	}
	return packets
}

// forwarded returns the packets of the udp backend, whose device is named flannel0
// with the default port, and flannel<port> with another.
func forwarded(n status.Node) (packets []outer) {
	for _, d := range n.Devices {
		number, ours := strings.CutPrefix(d.Name, "flannel")
		if port, err := strconv.ParseUint(number, 10, 16); ours && err == nil {
			packets = append(packets, outer{"udp", cmp.Or(int(port), 8285)})
		}
	}
	return packets
}

func (s Snapshot) accepted(packet outer) Finding {
	fix := fmt.Sprintf("Accept UDP port %[1]d from the other nodes (firewall-cmd --permanent --add-port=%[1]d/udp; "+
		"ufw allow %[1]d/udp; or a rule in INPUT).", packet.port)
	if packet.protocol == ipencap {
		fix = "Accept IP protocol 4 from the other nodes (firewall-cmd --permanent --add-protocol=ipencap; " +
			"iptables -I INPUT -p 4 -s the nodes' network -j ACCEPT)."
	}
	for _, f := range s.filters() {
		if finding := f.tunnelDropped(packet, fix); finding.Verdict != "" {
			return finding
		}
	}
	chains, byTable := parseNFT(s.Linux.NFTables.Value)
	for _, c := range chains {
		if c.hook == "input" && c.dropsByDefault() && !nameOuter(byTable[c.table], packet) {
			return warn(fix, "chain %s of table %s drops by default, and no rule of that table names %s",
				c.name, c.table, packet)
		}
	}
	return ok("found no rule that drops %s%s", packet, s.nftUnknown())
}

// nftUnknown returns text for a Finding that could consider iptables only.
func (s Snapshot) nftUnknown() string {
	if s.Linux.NFTables.Known {
		return ""
	}
	return " in iptables; nftables is not known: " + s.Linux.NFTables.whyUnknown()
}

// tunnelDropped returns a Finding if INPUT drops the packet, otherwise a zero one.
// A rule or policy that drops all packets counts only if no chain has a rule that
// accepts this one, because INPUT may jump to that chain before.
func (f filter) tunnelDropped(packet outer, fix string) Finding {
	accepted := slices.ContainsFunc(f.rules, func(r rule) bool { return r.accepts(packet) })
	for _, r := range f.chain("INPUT") {
		switch {
		case !r.matches(packet):
		case r.target == "ACCEPT":
			return Finding{}
		case r.drops() && (r.ports != "" || packet.port == 0 && r.protocol != ""):
			return fail(fix, "%q", r.text)
		case r.drops() && !accepted:
			return warn(fix, "%q, and no rule accepts %s", r.text, packet)
		}
	}
	if f.policy["INPUT"] == "DROP" && !accepted {
		return warn(fix, "the policy of INPUT is DROP, and no rule accepts %s", packet)
	}
	return Finding{}
}

// nameOuter reports whether a rule of nftables has the packet's port, as a single
// one, in a set or in a range, or without a port its protocol (nft -n prints the
// number).
func nameOuter(rules []string, packet outer) bool {
	for _, r := range rules {
		if packet.port == 0 {
			if ipencapRule.MatchString(r) {
				return true
			}
			continue
		}
		for word := range strings.FieldsFuncSeq(r, func(c rune) bool { return c != '-' && (c < '0' || c > '9') }) {
			if contains(strings.ReplaceAll(word, "-", ":"), packet.port) && strings.Contains(r, "dport") {
				return true
			}
		}
	}
	return false
}

// ipencapRule matches a rule of nftables with IPIP's protocol.
var ipencapRule = regexp.MustCompile(`\b(l4proto|protocol) (\{ |[^}]*, )?(4|ipencap)\b`)
