package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"flannel/pkg/firewall/iptsave"
)

// A firewall cannot be judged in full from its listing; these checks know the ways in which hosts usually drop our
// packets, and say so where they see one.

// rule is one rule of iptables-save.
type rule struct {
	chain, target string
	text          string
	udp           bool   // for UDP alone
	ports         string // "8472", "8000:9000" or "53,8472"; "" for all
	narrow        bool   // it has a condition other than protocol and ports
}

// filter is the filter table of one family.
type filter struct {
	policy map[string]string
	rules  []rule
}

func parseFilter(lines []string) filter {
	f := filter{policy: map[string]string{}}
	for _, text := range lines {
		line := []byte(strings.TrimSpace(text))
		if len(line) == 0 {
			continue
		}
		if line[0] == ':' {
			f.policy[string(iptsave.Chain(line))] = iptsave.Policy(line)
		} else if chain, args, ok := iptsave.Rule(line); ok {
			f.rules = append(f.rules, readRule(string(chain), string(args), text))
		}
	}
	return f
}

func readRule(chain, args, text string) rule {
	options := iptsave.Options(args)
	r := rule{chain: chain, text: text, target: iptsave.Target(options)}
	for _, o := range options {
		r.narrow = r.narrow || o.Not
		switch v := o.Value(); o.Name {
		case "-p":
			r.udp = v == "udp"
			r.narrow = r.narrow || v != "udp" && v != "all"
		case "--dport", "--dports":
			r.ports = v
		case "-m":
			r.narrow = r.narrow || v != "udp" && v != "multiport" && v != "comment"
		case "--comment":
		case "-j", "-g":
			return r // what follows is the target's
		default:
			r.narrow = true
		}
	}
	return r
}

// forUDP tells whether the rule takes every packet to that UDP port.
func (r rule) forUDP(port int) bool { return !r.narrow && (r.ports == "" || covers(r.ports, port)) }

// covers reads "53", "8000:9000" and lists of both.
func covers(ports string, port int) bool {
	for one := range strings.SplitSeq(ports, ",") {
		low, high, ranged := strings.Cut(one, ":")
		if !ranged {
			high = low
		}
		a, err1 := strconv.Atoi(low)
		b, err2 := strconv.Atoi(high)
		if err1 == nil && err2 == nil && a <= port && port <= b {
			return true
		}
	}
	return false
}

func dropping(target string) bool { return target == "DROP" || target == "REJECT" }

// chainOf lists a chain's own rules.
func (f filter) chainOf(name string) []rule {
	return slices.DeleteFunc(slices.Clone(f.rules), func(r rule) bool { return r.chain != name })
}

// nftChain is a base chain of nftables that is not iptables'.
type nftChain struct {
	table, name, hook, policy string
	rules                     []string
}

// parseNFT reads the base chains of nft list ruleset, and all rules by table.
func parseNFT(text string) (chains []nftChain, byTable map[string][]string) {
	byTable = map[string][]string{}
	table, current := "", nftChain{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		w := strings.Fields(line)
		switch {
		case len(w) >= 3 && w[0] == "table":
			table = w[1] + " " + w[2]
		case len(w) >= 2 && w[0] == "chain":
			current = nftChain{table: table, name: w[1]}
		case strings.HasPrefix(line, "type ") && len(w) >= 4 && w[2] == "hook":
			current.hook = w[3]
			if _, policy, found := strings.Cut(line, "policy "); found {
				current.policy = strings.TrimRight(policy, "; ")
			}
		case line == "}":
			if current.hook != "" && !byIPTables(current.table) {
				chains = append(chains, current)
			}
			current = nftChain{}
		case current.name != "" && line != "":
			current.rules = append(current.rules, line)
			byTable[table] = append(byTable[table], line)
		}
	}
	return chains, byTable
}

func byIPTables(table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return (family == "ip" || family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, name)
}

// closed tells whether what no earlier rule decided is dropped at the end of the chain.
func (c nftChain) closed() bool {
	if c.policy == "drop" {
		return true
	}
	if len(c.rules) == 0 {
		return false
	}
	last := c.rules[len(c.rules)-1]
	return strings.HasPrefix(last, "drop") || strings.HasPrefix(last, "reject") || strings.HasPrefix(last, "counter") &&
		(strings.HasSuffix(last, " drop") || strings.Contains(last, " reject"))
}

// filters are those of the families in use.
func (s Snapshot) filters() (all []filter, missing *Finding) {
	v4, v6 := s.families()
	for _, f := range []struct {
		on   bool
		fact Fact[[]Listing]
	}{{v4, s.Linux.IPTables}, {v6, s.Linux.IP6Tables}} {
		switch {
		case !f.on:
		case !f.fact.Known:
			why := f.fact.missing()
			return nil, &why
		default:
			for _, l := range f.fact.Value {
				all = append(all, parseFilter(l.Lines))
			}
		}
	}
	return all, nil
}

// forwardOpen looks for a drop that stands before, or instead of, what accepts the pods. In nftables every table has its
// say, and a drop in any of them is final.
func forwardOpen(s Snapshot) Finding {
	const before = "Delete that rule, or append it to FORWARD, if nobody wants it to stop pods: rules before ours count, and flanneld does not move ahead of them."
	const ours = "Leave --iptables-forward-rules on (it is by default) and see in flanneld status whether the firewall part fails; or accept the pod network in FORWARD yourself."
	filters, missing := s.filters()
	switch {
	case missing != nil:
		return *missing
	case len(s.subnets()) == 0:
		return skip("which families are in use is not known: there is neither a lease nor a subnet file")
	}
	for _, f := range filters {
		forward := f.chainOf("FORWARD")
		jump := slices.IndexFunc(forward, func(r rule) bool { return strings.HasPrefix(r.target, "FLANNEL-FWD") })
		drop := slices.IndexFunc(forward, func(r rule) bool { return dropping(r.target) && !r.narrow && !r.udp && r.ports == "" })
		switch {
		case drop >= 0 && jump > drop:
			return fail(before, "%q comes before what accepts the pods' packets", forward[drop].text)
		case drop >= 0 && jump < 0:
			return fail(ours, "%q drops the pods' packets, and no rule leads to FLANNEL-FWD", forward[drop].text)
		case jump < 0 && f.policy["FORWARD"] == "DROP":
			return fail(ours, "the policy of FORWARD is DROP (Docker sets it), and no rule leads to FLANNEL-FWD")
		}
	}
	chains, _ := parseNFT(s.Linux.NFTables.Value)
	for _, c := range chains {
		if c.hook == "forward" && c.closed() && !strings.Contains(strings.Join(c.rules, "\n"), "accept") {
			return warn("Accept the pod network in that chain: under nftables an accept of ours overrules no other table's drop.",
				"chain %s of table %s drops what is forwarded", c.name, c.table)
		}
	}
	return ok("nothing is seen that does%s", s.unseenNFT())
}

// portOpen only warns where a firewall drops by default: what accepts the port may stand where this does not look, in a
// set or behind a mark.
func portOpen(s Snapshot) Finding {
	tunnels := s.tunnels()
	switch {
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	case len(tunnels) == 0:
		return skip("there is no VXLAN device of ours: without a tunnel there is no port")
	}
	filters, missing := s.filters()
	if missing != nil {
		return *missing
	}
	port := tunnels[0].Port
	fix := fmt.Sprintf("Accept UDP port %d from the other nodes (firewall-cmd --permanent --add-port=%d/udp; ufw allow %d/udp; or a rule in INPUT).", port, port, port)
	for _, f := range filters {
		if found := f.closes(port, fix); found != nil {
			return *found
		}
	}
	chains, byTable := parseNFT(s.Linux.NFTables.Value)
	for _, c := range chains {
		if c.hook == "input" && c.closed() && !mentions(byTable[c.table], port) {
			return warn(fix, "chain %s of table %s drops what nothing accepts, and no rule of that table names the port", c.name, c.table)
		}
	}
	return ok("UDP port %d: nothing is seen that drops it%s", port, s.unseenNFT())
}

// unseenNFT says that half of the picture is missing, where it is.
func (s Snapshot) unseenNFT() string {
	if s.Linux.NFTables.Known {
		return ""
	}
	return " by iptables; nftables was not seen: " + or(s.Linux.NFTables.WhyNot, "it was not looked at")
}

// closes finds what drops the port: a rule for it, or the end of INPUT where no rule anywhere accepts it.
func (f filter) closes(port int, fix string) *Finding {
	accepted := slices.ContainsFunc(f.rules, func(r rule) bool {
		return r.target == "ACCEPT" && r.ports != "" && covers(r.ports, port) && (r.udp || r.narrow)
	})
	for _, r := range f.chainOf("INPUT") {
		switch {
		case !r.forUDP(port):
		case r.target == "ACCEPT":
			return nil
		case dropping(r.target) && r.ports != "":
			found := fail(fix, "%q", r.text)
			return &found
		case dropping(r.target) && !accepted:
			found := warn(fix, "%q, and nothing accepts the port", r.text)
			return &found
		}
	}
	if f.policy["INPUT"] == "DROP" && !accepted {
		found := warn(fix, "the policy of INPUT is DROP, and nothing is seen that accepts the port")
		return &found
	}
	return nil
}

// mentions tells whether a rule speaks of the port, alone, in a set or in a range.
func mentions(rules []string, port int) bool {
	for _, r := range rules {
		for word := range strings.FieldsFuncSeq(r, func(c rune) bool { return c != '-' && (c < '0' || c > '9') }) {
			if covers(strings.ReplaceAll(word, "-", ":"), port) && strings.Contains(r, "dport") {
				return true
			}
		}
	}
	return false
}
