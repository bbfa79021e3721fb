package ruleset

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// object is a JSON object of nft's output (libnftables-json(5)).
type object = map[string]any

// nftReader reads the output of nft.
type nftReader struct {
	rules  *Ruleset          // gets the base chains
	chains map[string]*chain // by family, table and name, see key
	sets   map[string][]any  // elements of sets and maps, by the same keys
	// leftOut has the keys of kube-proxy's chains that AddIPTables did not get. A jump to one
	// changes nothing, see step.
	leftOut map[string]bool
}

// nftObject is a chain, a rule, a set or a map. A chain without a hook is no base chain.
type nftObject struct {
	Family, Table, Chain, Name, Hook, Policy string
	Handle, Prio                             int
	Dev                                      any   // one name or a list
	Expr, Elem                               []any // the statements of a rule; the elements of a set or map
}

// AddNFT adds the output of nft -j list ruleset. For the tables of iptables-nft it must
// be called after AddIPTables, see rulesOf.
func (r *Ruleset) AddNFT(output []byte) error {
	var document struct {
		Objects []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal(output, &document); err != nil {
		return fmt.Errorf("parse the output of nft: %w", err)
	}
	n := nftReader{r, map[string]*chain{}, map[string][]any{}, map[string]bool{}}
	var rules []nftObject // they refer to all others
	for _, objects := range document.Objects {
		for what, raw := range objects { // one member: the kind of object
			var o nftObject
			if !slices.Contains([]string{"chain", "set", "map", "rule"}, what) {
				continue
			}
			if err := decode(raw, &o); err != nil {
				return fmt.Errorf("parse the output of nft: %s: %w", what, err)
			}
			switch what {
			case "chain":
				n.addChain(o)
			case "rule":
				rules = append(rules, o)
			default:
				n.sets[key(o.Family, o.Table, o.Name)] = o.Elem
			}
		}
	}
	listed := map[*chain][]nftObject{}
	for _, rule := range rules {
		if c := n.chains[key(rule.Family, rule.Table, rule.Chain)]; c != nil {
			listed[c] = append(listed[c], rule)
		}
	}
	for c, rules := range listed {
		c.rules = n.rulesOf(c, rules)
	}
	return nil
}

// decode keeps numbers exact.
func decode(raw json.RawMessage, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(v)
}

// key returns the key of a chain, a set or a map.
func key(family, table, name string) string { return family + " " + table + " " + name }

// guardTables is the beginning of the names of our own tables that drop forged packets.
const guardTables = "flannel-guard"

// addChain adds a chain, unless the packets do not pass it (families arp and bridge), or it
// is of our own guard, about which the check FL211 reports.
func (n nftReader) addChain(c nftObject) {
	if !slices.Contains([]string{"ip", "ip6", "inet", "netdev"}, c.Family) || strings.HasPrefix(c.Table, guardTables) {
		return
	}
	// In a table that AddIPTables has read, a chain is not in saved if iptables-save does not
	// print it: a base chain that iptables cannot have made, or a chain of kube-proxy.
	saved, ofIPTables := n.rules.iptables[c.Family+" "+c.Table]
	if known := saved[c.Name]; known != nil { // AddIPTables has added it to base
		n.chains[key(c.Family, c.Table, c.Name)] = known
		return
	}
	if ofIPTables && ofKubeProxy(c.Table, c.Name) {
		n.leftOut[key(c.Family, c.Table, c.Name)] = true
		return
	}
	made := &chain{place: fmt.Sprintf("table %s %s, chain %s", c.Family, c.Table, c.Name), family: c.Family, hook: c.Hook,
		priority: c.Prio, drops: c.Policy == "drop"}
	devices, isList := c.Dev.([]any)
	if !isList && c.Dev != nil {
		devices = []any{c.Dev}
	}
	for _, device := range devices {
		made.devices = append(made.devices, fmt.Sprint(device))
	}
	n.chains[key(c.Family, c.Table, c.Name)] = made
	if c.Hook != "" {
		n.rules.base = append(n.rules.base, made)
	}
}

// rulesOf returns the rules of a chain. Those of a chain that AddIPTables has read are
// taken from nft, since iptables-save prints a rule that was made by nft as if some of
// its conditions did not exist: "ip daddr @set drop" becomes "-j DROP". Rules with an
// extension of iptables are taken from iptables-save: nft cannot print extensions, and
// only iptables makes such rules. If the chain changed between the two readings, so that
// the numbers of rules differ, then the extensions cannot be evaluated.
func (n nftReader) rulesOf(c *chain, listed []nftObject) (rules []rule) {
	for i, r := range listed {
		if len(c.rules) == len(listed) && r.hasExtension() {
			rules = append(rules, c.rules[i])
			continue
		}
		rules = append(rules, n.rule(r))
	}
	return rules
}

// hasExtension reports whether the rule has a match or target of iptables, which nft does
// not show in full: nft before 1.0.6 prints {"xt": null}.
func (r nftObject) hasExtension() bool {
	return slices.ContainsFunc(r.Expr, func(e any) bool { name, _ := member(e); return name == "xt" })
}

// rule reads a rule, statement by statement.
func (n nftReader) rule(r nftObject) rule {
	made := rule{text: fmt.Sprintf("%q (handle %d)", list(r.Expr, " "), r.Handle)}
	table := nftTable{n, r.Family, r.Table}
	for _, statement := range r.Expr {
		made.steps = append(made.steps, table.step(statement))
	}
	return made
}

// nftTable is the scope of names in a rule.
type nftTable struct {
	nftReader
	family, table string
}

// step returns the step of one statement. nft prints a statement for which it has no JSON
// as text, which is no object: it is not evaluated.
func (t nftTable) step(statement any) step {
	name, value := member(statement)
	args, _ := value.(object)
	text := cmp.Or(expression(statement), name, "a statement without a name")
	switch name {
	case "match": // a condition
		return t.match(args, text)
	case "vmap": // a verdict by key
		return t.verdictMap(args, text)
	case "mangle": // sets a mark or a header field
		return t.mangle(args, text)
	case "set", "meter": // adds to a set, often with a limit
		if _, limited := args["stmt"]; limited {
			return always(some, text)
		}
		return always(yes, text)
	case "counter", "log", "dup", "flow", "last", "ct helper", "ct timeout", "ct expectation", "secmark":
		return always(yes, text)
	case "limit", "quota", "ct count":
		return always(some, text)
	case "xt":
		if args["type"] == "match" && args["name"] == "comment" {
			return always(yes, text)
		} // another extension: leave, at the end
	case "notrack":
		return untrack
	case "masquerade", "snat": // the packet keeps its way
		return final(verdict{kind: accept})
	}
	if v, ok := t.verdict(name, args); ok {
		return final(v)
	}
	if target, _ := args["target"].(string); t.leftOut[key(t.family, t.table, target)] {
		return always(yes, text)
	}
	return leave(text) // a queue, a redirection, or what is not known here
}

// verdict returns the verdict of a statement or of an element of a map.
func (t nftTable) verdict(name string, args object) (v verdict, ok bool) {
	switch name {
	case "accept":
		return verdict{kind: accept}, true
	case "drop", "reject":
		return verdict{kind: drop}, true
	case "return":
		return verdict{kind: goBack}, true
	case "jump", "goto":
		target, _ := args["target"].(string)
		to := t.chains[key(t.family, t.table, target)]
		v := verdict{jump, to}
		if name == "goto" {
			v.kind = goTo
		}
		return v, to != nil // false: no such chain, or one that addChain has not added
	}
	return verdict{}, false
}
