package probe

import (
	"strings"

	"flannel/pkg/doctor/ruleset"
)

// ruleCase is a list of rules, and what becomes of a packet on one of the ways.
type ruleCase struct {
	program string // of iptables, with the family; "": the rules are nft's, for both families
	rules   string
	way     string
	want    ruleset.Verdict
}

// script returns the commands that create the rules. IP is ip or ip6, and the
// addresses are those of the family.
func (c ruleCase) script(ipv6 bool) string {
	words := []string{"IP ", "ip ", "ANY", "ipv4", "TYPE", "ipv4_addr", "PEERNET", "192.168.0.0/24", "PEER", "192.168.0.4", "NODE", "192.168.0.3", "PODNET", "10.5.0.0/16"}
	if ipv6 {
		words = []string{"IP ", "ip6 ", "ANY", "ipv6", "TYPE", "ipv6_addr", "PEERNET", "fd00::/64", "PEER", "fd00::4", "NODE", "fd00::3", "PODNET", "fd05::/16"}
	}
	rules := strings.NewReplacer(words...).Replace(c.rules)
	if c.program == "" {
		return "nft -f - <<'E'\n" + rules + "\nE"
	}
	return "ipt() { " + c.program + " \"$@\"; }; " + rules
}

// inChain is a table of nft with one base chain.
func inChain(hook, policy, rules string) string {
	kind, priority := "filter", "0"
	if hook == "prerouting" {
		priority = "raw"
	}
	return "table inet mine {\n" + sets + "chain other {\nudp dport 8472 drop\n}\nchain pass {\nudp dport 8472 accept\n}\nchain back {\nreturn\n}\nchain c {\ntype " + kind + " hook " + hook + " priority " + priority + "; policy " + policy +
		";\n" + rules + "\n}\n}"
}

const sets = `
	set ports { type inet_service; flags interval; elements = { 53, 8400-8500 }
	}
	set peers { type TYPE; flags interval; elements = { PEERNET }
	}
	set pairs { type TYPE . inet_service; flags interval; elements = { PEERNET . 8000-9000 }
	}
	map actions { type inet_service : verdict; elements = { 53 : accept, 8472 : jump other }
	}
	map tuples { type TYPE . inet_proto . inet_service : verdict; elements = { NODE . udp . 8472 : goto other }
	}
`

// ruleCases returns the cases for nft and for each program of iptables.
func ruleCases() []ruleCase {
	cases := nftCases()
	for _, program := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		for _, c := range iptablesCases {
			c.program = program
			cases = append(cases, c)
		}
	}
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, c := range mixedCases {
			c.program = program
			cases = append(cases, c)
		}
	}
	return cases
}

// nftDrops and nftPasses are rules in a chain of input with policy accept, which
// drop incoming packets to the port, or do not.
var nftDrops = []string{
	`udp dport 8472 drop`, `udp dport 8472 counter log drop comment "a b"`, `udp dport { 53, 8472 } drop`, `udp dport { 8000-9000 } drop`,
	`udp dport 8000-9000 drop`, `udp dport @ports drop`, `udp dport != 53 drop`, `udp dport >= 8472 drop`, `th dport 8472 drop`,
	`@th,16,16 8472 drop`, `meta l4proto udp reject`, `meta l4proto { 17, 50 } th dport 8472 drop`, `IP saddr PEERNET drop`, `IP saddr @peers drop`,
	`IP saddr . udp dport @pairs drop`, `IP saddr . udp dport { PEER . 8472 } drop`, `IP daddr NODE drop`, `iifname "eth0" drop`,
	`iifname "eth*" drop`, `iifname { "lo", "et*" } drop`, `iif eth0 drop`, `iifname != "lo" drop`, `oifname != "x" drop`, `ct state new drop`,
	`ct state { new, untracked } drop`, `ct state != established drop`, `ct state != established,related drop`, `ct state != new,established drop`, `ct state vmap { established : accept, new : drop }`, `udp dport vmap @actions`, `IP daddr . meta l4proto . th dport vmap @tuples`,
	`jump back; drop`, `jump other`, `goto other`, `meta mark set 0x10; meta mark & 0x10 == 0x10 drop`, `meta mark set mark | 3; meta mark 3 drop`,
	`ct mark set 5; meta mark set ct mark; meta mark 5 drop`, `meta nfproto ANY drop`, `fib daddr type local drop`, `meta pkttype host drop`, `udp dport 8000 accept; udp sport 1-65535 drop`, `limit rate 1/hour accept; drop; `,
	`fib saddr . iif oif exists drop`, `ct direction original drop`, `ct state & (established | related) == 0 drop`,
}

var nftPasses = []string{
	`tcp dport 8472 drop`, `udp dport 4789 drop`, `udp dport { 53, 8473 } drop`, `udp dport != 8472 drop`, `tcp dport != 22 drop`, `meta l4proto tcp drop`, `IP saddr != PEER drop`,
	`iifname "eth1*" drop`, `iifname != "eth0" drop`, `oifname "eth0" drop`, `ct state invalid drop`, `ct state != { new } drop`, `meta mark 1 drop`,
	`udp dport 8472 accept; drop`, `udp dport 8472 return; drop`, `jump pass; drop`, `goto back; drop`, `fib saddr . iif oif missing drop`,
	`meta pkttype { broadcast, multicast } drop`, `ct status dnat drop`, `tcp flags & (syn|ack) == syn drop`, `udp dport vmap { 53 : drop }`,
	`meta mark set 7; meta mark & 8 == 8 drop`, `udp dport < 8472 drop`, `fib daddr type { broadcast, multicast } drop`, `icmp type echo-request drop`,
	`ct state & (new | related) == 0 drop`, `tcp flags & (fin | syn | rst) == 0 drop`,
}

func nftCases() (cases []ruleCase) {
	lines := func(rules string) string { return strings.ReplaceAll(rules, "; ", "\n") }
	for _, rule := range nftDrops {
		want := ruleset.Dropped
		if strings.HasPrefix(rule, "limit") {
			want = ruleset.Mostly
		}
		cases = append(cases, ruleCase{"", inChain("input", "accept", lines(rule)), "in", want})
	}
	for _, rule := range nftPasses {
		cases = append(cases, ruleCase{"", inChain("input", "accept", lines(rule)), "in", ruleset.Passes})
	}
	return append(cases, []ruleCase{
		{"", "", "in", ruleset.Passes}, {"", "", "out", ruleset.Passes}, {"", "", "topod", ruleset.Passes}, {"", "", "frompod", ruleset.Passes},
		{"", inChain("input", "drop", ""), "in", ruleset.Dropped},
		{"", inChain("input", "drop", "udp dport @ports accept"), "in", ruleset.Passes},
		{"", inChain("input", "drop", "jump back"), "in", ruleset.Dropped},
		{"", inChain("prerouting", "accept", "udp dport 8472 drop"), "in", ruleset.Dropped},
		{"", inChain("prerouting", "accept", "udp dport 8472 notrack\nct state untracked drop"), "in", ruleset.Dropped},
		{"", inChain("output", "accept", "udp dport 8472 drop"), "out", ruleset.Dropped},
		{"", inChain("output", "accept", "oifname \"eth0\" drop"), "out", ruleset.Dropped},
		{"", inChain("output", "accept", "iifname \"eth0\" drop"), "out", ruleset.Passes},
		{"", inChain("output", "accept", "fib saddr type local drop"), "out", ruleset.Dropped},
		{"", inChain("postrouting", "drop", ""), "out", ruleset.Dropped},
		{"", inChain("input", "drop", ""), "out", ruleset.Passes},
		{"", inChain("forward", "drop", "iifname \"cni0\" accept"), "frompod", ruleset.Passes},
		{"", inChain("forward", "drop", "iifname \"cni0\" accept"), "topod", ruleset.Dropped},
		{"", inChain("forward", "accept", "oifname \"cni0\" IP daddr PODNET drop"), "topod", ruleset.Dropped},
		{"", inChain("forward", "drop", "IP saddr PODNET accept"), "frompod", ruleset.Passes},
		{"", inChain("postrouting", "accept", "iifname \"cni0\" drop"), "frompod", ruleset.Dropped},
		{"", "table inet a {\nchain c {\ntype filter hook input priority 10; policy accept;\nmeta mark 1 drop\n}\nchain d {\ntype filter hook input priority 0; policy accept;\nmeta mark set 1\n}\n}", "in", ruleset.Dropped},
		{"", "table inet a {\nchain c {\ntype filter hook input priority 0; policy accept;\naccept\n}\nchain d {\ntype filter hook input priority 1; policy drop;\n}\n}", "in", ruleset.Dropped},
		{"", "table netdev a {\nchain c {\ntype filter hook ingress device eth0 priority 0; policy accept;\nudp dport 8472 drop\n}\n}", "in", ruleset.Undecided},
		{"", "table netdev a {\nchain c {\ntype filter hook ingress device cni0 priority 0; policy accept;\nudp dport 4789 drop\n}\n}", "in", ruleset.Passes},
		{"", "table inet a {\nchain c {\ntype nat hook prerouting priority -100; policy accept;\nudp dport 8472 redirect to :9\n}\n}", "in", ruleset.Undecided},
		{"", "table bridge a {\nchain c {\ntype filter hook input priority 0; policy drop;\n}\n}", "in", ruleset.Passes},
	}...)
}

// iptablesCases are for each program.
var iptablesCases = []ruleCase{
	{rules: `ipt -A INPUT -p udp --dport 8472 -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -p udp --dport 8000:9000 -j REJECT`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -p udp -m multiport --dports 53,8400:8500 -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -p udp -m multiport --ports 8472 -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -p udp ! --dport 8472 -j DROP; ipt -A INPUT -p tcp --dport 8472 -j DROP`, way: "in", want: ruleset.Passes},
	{rules: `ipt -t raw -A PREROUTING -p udp --dport 8472 -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -t mangle -A PREROUTING -i eth+ -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -t mangle -A PREROUTING -i cni+ -j DROP`, way: "in", want: ruleset.Passes},
	{rules: `ipt -A OUTPUT -p udp --dport 8472 -j DROP`, way: "out", want: ruleset.Dropped},
	{rules: `ipt -t raw -A OUTPUT -d PEER -j DROP`, way: "out", want: ruleset.Dropped},
	{rules: `ipt -t mangle -A POSTROUTING -o eth0 -j DROP`, way: "out", want: ruleset.Dropped},
	{rules: `ipt -P INPUT DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT DROP; ipt -A INPUT -i lo -j ACCEPT; ipt -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT DROP; ipt -N x; ipt -A INPUT -j x; ipt -A x -s PEERNET -p udp --dport 8472 -j ACCEPT`, way: "in", want: ruleset.Passes},
	{rules: `ipt -P INPUT DROP; ipt -N x; ipt -A INPUT -g x; ipt -A INPUT -j ACCEPT; ipt -A x -j RETURN`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT ! -s PEER -j DROP; ipt -A INPUT -m conntrack --ctstate INVALID -j DROP; ipt -A INPUT -m mark --mark 1 -j DROP`, way: "in", want: ruleset.Passes},
	{rules: `ipt -A INPUT -m conntrack --ctstate NEW -m comment --comment "a \"b\" -j ACCEPT" -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -m addrtype --dst-type LOCAL -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -m addrtype --dst-type MULTICAST -j DROP; ipt -A INPUT -m addrtype ! --dst-type LOCAL -j DROP`, way: "in", want: ruleset.Passes},
	{rules: `ipt -t raw -A PREROUTING -m rpfilter --invert -j DROP`, way: "in", want: ruleset.Passes},
	{rules: `ipt -t mangle -A PREROUTING -p udp -j MARK --set-mark 0x40/0x40; ipt -A INPUT -m mark --mark 0x40/0x40 -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -t mangle -A PREROUTING -j MARK --set-mark 2; ipt -t mangle -A PREROUTING -j CONNMARK --save-mark; ipt -A INPUT -m connmark --mark 2 -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -t raw -A PREROUTING -p udp -j CT --notrack; ipt -A INPUT -m conntrack --ctstate UNTRACKED -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -m string --algo bm --string zzz -j DROP`, way: "in", want: ruleset.Undecided},
	{rules: `ipt -A INPUT -m string --algo bm --string zzz -j DROP; ipt -A INPUT -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -A INPUT -m limit --limit 1/hour -j ACCEPT; ipt -A INPUT -j DROP`, way: "in", want: ruleset.Mostly},
	{rules: `ipt -P FORWARD DROP; ipt -A FORWARD -s PODNET -j ACCEPT`, way: "frompod", want: ruleset.Passes},
	{rules: `ipt -P FORWARD DROP; ipt -A FORWARD -i cni0 -j ACCEPT`, way: "topod", want: ruleset.Dropped},
	{rules: `ipt -A FORWARD -o cni0 -p udp -j REJECT`, way: "topod", want: ruleset.Dropped},
	{rules: `ipt -t nat -A PREROUTING -p udp --dport 8472 -j REDIRECT --to-ports 9`, way: "in", want: ruleset.Undecided},
}

// mixedCases have rules of nft in tables of iptables-nft. iptables-save prints them
// without some conditions, or fails.
var mixedCases = []ruleCase{
	{rules: `ipt -P FORWARD ACCEPT; nft 'add set IP filter bad { type TYPE; }; add rule IP filter FORWARD IP daddr @bad drop'`, way: "topod", want: ruleset.Passes},
	{rules: `ipt -P INPUT ACCEPT; nft 'add set IP filter bad { type TYPE; elements = { PEER }; }; add rule IP filter INPUT IP saddr @bad drop'`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT ACCEPT; nft 'add rule IP filter INPUT udp dport { 53, 4789 } drop'`, way: "in", want: ruleset.Passes},
	{rules: `ipt -P INPUT ACCEPT; nft 'add map IP filter m { type TYPE : verdict; elements = { PEER : drop }; }; add rule IP filter INPUT IP saddr vmap @m'`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT ACCEPT; nft 'add rule IP filter INPUT udp dport { 53, 4789 } drop'; ipt -A INPUT -m conntrack --ctstate NEW -j DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT ACCEPT; nft 'add rule IP filter INPUT udp dport { 53, 4789 } drop'; ipt -A INPUT -m conntrack --ctstate INVALID -j DROP`, way: "in", want: ruleset.Passes},
	{rules: `ipt -P INPUT ACCEPT; nft 'add chain IP filter mine { type filter hook input priority 10; policy drop; }'`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT ACCEPT; nft 'add rule IP filter INPUT meta mark set meta mark & 0xff00 | 1'`, way: "in", want: ruleset.Passes},
	{rules: `ipt -P INPUT ACCEPT; nft 'add rule IP filter INPUT meta mark set meta mark & 0xff00 | 1'; ipt -P INPUT DROP`, way: "in", want: ruleset.Dropped},
	{rules: `ipt -P INPUT DROP; nft 'add rule IP filter INPUT meta mark set 0x1'; ipt -A INPUT -m comment --comment "a b" -p udp -j ACCEPT`, way: "in", want: ruleset.Passes},
	{rules: `ipt -P INPUT ACCEPT; nft 'add rule IP filter INPUT meta mark set 0x1'; ipt -A INPUT -m string --algo bm --string zzz -j DROP`, way: "in", want: ruleset.Undecided},
}
