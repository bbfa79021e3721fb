package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"flannel/pkg/firewall/iptsave"
)

// rule is a rule in the format of iptables-save.
type rule struct {
	chain, target string
	text          string
	protocol      string // a tunnel's: "udp" or "ipencap"; "": any
	ports         string // destination ports: "8472", "8000:9000" or "53,8472"; "": any
	narrow        bool   // has a condition other than such a protocol and ports
}

// filter is the filter table of one family and one variant of iptables.
type filter struct {
	policy map[string]string // "ACCEPT" or "DROP", by chain
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
			f.rules = append(f.rules, parseRule(string(chain), string(args), text))
		}
	}
	return f
}

func parseRule(chain, args, text string) rule {
	options := iptsave.Options(args)
	r := rule{chain: chain, text: text, target: iptsave.Target(options)}
	for _, o := range options {
		r.narrow = r.narrow || o.Not
		switch v := o.Value(); o.Name {
		case "-p":
			switch v {
			case "all":
			case "4", "ipv4": // other names of ipencap, see /etc/protocols
				r.protocol = ipencap
			default:
				r.protocol = v
				r.narrow = r.narrow || v != "udp" && v != ipencap
			}
		case "--dport", "--dports":
			r.ports = v
		case "-m":
			r.narrow = r.narrow || v != "udp" && v != "multiport" && v != "comment"
		case "--comment":
		case "-j", "-g":
			return r // the remaining options belong to the target
		default:
			r.narrow = true
		}
	}
	return r
}

// ipencap is the name of IPIP's protocol number, 4, in /etc/protocols.
const ipencap = "ipencap"

// outer is what a tunnel sends, as a firewall sees it.
type outer struct {
	protocol string // "udp" or "ipencap"
	port     int    // 0: the protocol has none
}

func (o outer) String() string {
	if o.port == 0 {
		return "IP protocol 4 (" + o.protocol + ")"
	}
	return fmt.Sprintf("UDP port %d", o.port)
}

// matches reports whether the rule matches every such packet.
func (r rule) matches(o outer) bool {
	return !r.narrow && (r.protocol == "" || r.protocol == o.protocol) && (r.ports == "" || contains(r.ports, o.port))
}

// accepts reports whether the rule accepts such packets in particular, perhaps
// not all of them.
func (r rule) accepts(o outer) bool {
	if o.port == 0 {
		return r.target == "ACCEPT" && r.protocol == o.protocol
	}
	return r.target == "ACCEPT" && r.ports != "" && contains(r.ports, o.port) && (r.protocol == o.protocol || r.narrow)
}

// contains reports whether the port is in a list like "53,8000:9000".
func contains(ports string, port int) bool {
	for item := range strings.SplitSeq(ports, ",") {
		first, last, isRange := strings.Cut(item, ":")
		if !isRange {
			last = first
		}
		low, err1 := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && low <= port && port <= high {
			return true
		}
	}
	return false
}

func (r rule) drops() bool { return r.target == "DROP" || r.target == "REJECT" }

// chain returns the rules of a chain.
func (f filter) chain(name string) []rule {
	return slices.DeleteFunc(slices.Clone(f.rules), func(r rule) bool { return r.chain != name })
}

// nftChain is a base chain of nftables. The kernel evaluates it for each packet
// that reaches its hook.
type nftChain struct {
	table, name  string // table is "inet firewalld"
	hook, policy string // policy may be "", which means accept
	rules        []string
}

// parseNFT parses the output of nft list ruleset. It returns the base chains
// without those of iptables-nft, and the rules of all chains by table.
func parseNFT(text string) (chains []nftChain, byTable map[string][]string) {
	byTable = map[string][]string{}
	table, current := "", nftChain{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		switch {
		case len(words) >= 3 && words[0] == "table":
			table = words[1] + " " + words[2]
		case len(words) >= 2 && words[0] == "chain":
			current = nftChain{table: table, name: words[1]}
		case strings.HasPrefix(line, "type ") && len(words) >= 4 && words[2] == "hook":
			current.hook = words[3]
			if _, policy, found := strings.Cut(line, "policy "); found {
				current.policy = strings.TrimRight(policy, "; ")
			}
		case line == "}":
			if current.hook != "" && !ofIPTables(current.table) {
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

// ofIPTables reports whether iptables-nft manages the table.
func ofIPTables(table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return (family == "ip" || family == "ip6") &&
		slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, name)
}

// dropsByDefault reports whether the policy or the last rule of the chain drops
// packets that no rule before accepts.
func (c nftChain) dropsByDefault() bool {
	if c.policy == "drop" || len(c.rules) == 0 {
		return c.policy == "drop"
	}
	last := c.rules[len(c.rules)-1]
	return strings.HasPrefix(last, "drop") || strings.HasPrefix(last, "reject") || strings.HasPrefix(last, "counter") &&
		(strings.HasSuffix(last, " drop") || strings.Contains(last, " reject"))
}
