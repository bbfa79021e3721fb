package ruleset

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

var pfx = netip.MustParsePrefix

// The packets that most cases are about: those of a tunnel, and those between pods.
var (
	incoming = Packet{Path: Incoming, Src: pfx("192.168.0.4/32"), Dst: pfx("192.168.0.3/32"), Protocol: 17, DstPort: 8472, In: "eth0"}
	outgoing = Packet{Path: Outgoing, Src: pfx("192.168.0.3/32"), Dst: pfx("192.168.0.4/32"), Protocol: 17, DstPort: 8472, Out: "eth0"}
	toPods   = Packet{Path: Forwarded, Src: pfx("10.5.0.0/16"), Dst: pfx("10.5.3.0/24"), In: "flannel.1", Out: "cni0"}
	fromPods = Packet{Path: Forwarded, Src: pfx("10.5.3.0/24"), Dst: pfx("10.5.0.0/16"), In: "cni0", Out: "flannel.1"}
)

func (p Packet) with(change func(*Packet)) Packet {
	change(&p)
	return p
}

// TestPrograms has the rules of common programs, as nft prints them.
func TestPrograms(t *testing.T) {
	trusted := incoming.with(func(p *Packet) { p.In = "eth1" })
	other := func(p *Packet) { p.In = AnyDevice }
	overIPv6 := incoming.with(func(p *Packet) { p.Src, p.Dst = pfx("fd00::4/128"), pfx("fd00::3/128") })
	for _, c := range []struct {
		file   string
		packet Packet
		want   Verdict
	}{
		{"zones", incoming, Dropped}, {"zones", overIPv6, Dropped}, {"zones", trusted, Passes}, {"zones", incoming.with(other), Mostly},
		{"zones", outgoing, Passes}, {"zones", fromPods, Passes}, {"zones", toPods, Mostly},
		{"zones", toPods.with(func(p *Packet) { p.Protocol = 6 }), Dropped}, {"zones", toPods.with(func(p *Packet) { p.Protocol = 1 }), Passes},
		{"zones", incoming.with(func(p *Packet) { p.Protocol, p.DstPort = 6, 22 }), Passes},
		{"services", incoming, Passes}, {"services", outgoing, Passes}, {"services", toPods, Passes}, {"services", fromPods, Passes},
		{"services", incoming.with(func(p *Packet) { p.DstPort = 30053 }), Undecided}, // goes to a pod
		{"services", fromPods.with(func(p *Packet) { p.Dst, p.Protocol, p.DstPort = pfx("10.96.0.99/32"), 6, 80 }), Dropped},
	} {
		raw, err := os.ReadFile("testdata/" + c.file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var r Ruleset
		if err := r.AddNFT(raw); err != nil {
			t.Fatal(err)
		}
		if got := r.Evaluate(c.packet); got.Verdict != c.want || (got.Verdict == Passes) != (got.Rule == "") || (got.Verdict == Undecided) != (got.Reason != "") {
			t.Errorf("%s, %+v: %+v, want %v", c.file, c.packet, got, c.want)
		}
	}
}

// policy is the start of a table with a network policy for one pod, in the chain fw.
const policy = "*filter;:FORWARD ACCEPT [0:0];:fw - [0:0];-A FORWARD -d 10.5.3.7/32 -j fw"

// ipvsMode has the table filter of kube-proxy in IPVS mode.
const ipvsMode = "*filter;:INPUT ACCEPT [0:0];:FORWARD ACCEPT [0:0];:KUBE-IPVS-FILTER - [0:0];:KUBE-NODE-PORT - [0:0];:KUBE-PROXY-FIREWALL - [0:0];" +
	":KUBE-SOURCE-RANGES-FIREWALL - [0:0];-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER;" +
	"-A INPUT -j KUBE-PROXY-FIREWALL;-A INPUT -j KUBE-NODE-PORT;-A FORWARD -j KUBE-PROXY-FIREWALL;" +
	"-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN;-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN;" +
	"-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN;-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN;" +
	"-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable;" +
	"-A KUBE-NODE-PORT -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT;" +
	"-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL;-A KUBE-SOURCE-RANGES-FIREWALL -j DROP"

// TestIPTables has rules of common programs, as iptables-save prints them.
func TestIPTables(t *testing.T) {
	for _, c := range []struct {
		name   string
		lines  string
		packet Packet
		want   Verdict
	}{
		{"ufw", "*filter;:INPUT DROP [0:0];:before - [0:0];:user - [0:0];:local - [0:0];-A INPUT -j before;-A INPUT -j user;-A before -i lo -j ACCEPT;" +
			"-A before -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT;-A before -m conntrack --ctstate INVALID -j DROP;-A before -j local;" +
			"-A local -m addrtype --dst-type LOCAL -j RETURN;-A local -m limit --limit 3/min --limit-burst 10 -j LOG;-A local -j DROP;" +
			"-A user -p udp -m udp --dport 8472 -j ACCEPT", incoming, Passes},
		{"Docker", "*raw;:PREROUTING ACCEPT [0:0];-A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP;*filter;:FORWARD DROP [0:0];:DOCKER - [0:0];:FLANNEL-FWD - [0:0];" +
			"-A FORWARD -j DOCKER;-A FORWARD -j FLANNEL-FWD;-A DOCKER ! -i docker0 -o docker0 -j DROP;-A DOCKER -i docker0 -j ACCEPT;" +
			"-A FLANNEL-FWD -s 10.5.0.0/16 -j ACCEPT", toPods, Passes},
		{"kube-proxy", "*nat;:PREROUTING ACCEPT [0:0];-A PREROUTING -j KUBE-SERVICES;*filter;:INPUT ACCEPT [0:0];:FORWARD ACCEPT [0:0];:KUBE-FORWARD - [0:0];:KUBE-FIREWALL - [0:0];" +
			"-A INPUT -j KUBE-FIREWALL;-A FORWARD -j KUBE-FORWARD;-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP;-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT;" +
			"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP;-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", incoming, Passes},
		{"kube-proxy in IPVS mode", ipvsMode, incoming, Passes},
		{"kube-proxy in IPVS mode", ipvsMode, incoming.with(func(p *Packet) { p.MayBeService = true }), Undecided},
		{"kube-proxy in IPVS mode", ipvsMode, toPods, Passes},
		{"kube-router's sets", "*filter;:INPUT ACCEPT [0:0];-A INPUT -m set --match-set KUBE-DST-2FAIIK2E4RIPMTGF dst -j DROP", incoming, Undecided},
		{"marks of a policy engine", "*mangle;:PREROUTING ACCEPT [0:0];-A PREROUTING -j MARK --set-xmark 0x0/0xf0000;-A PREROUTING -i eth0 -j MARK --set-xmark 0x10000/0x10000;" +
			"*filter;:INPUT DROP [0:0];-A INPUT -m mark --mark 0x10000/0x10000 -j ACCEPT", incoming, Passes},
		{"a mark that only some get", "*mangle;:PREROUTING ACCEPT [0:0];-A PREROUTING -m ttl --ttl-lt 5 -j MARK --set-xmark 0x1/0x1;*filter;:INPUT ACCEPT [0:0];-A INPUT -m mark --mark 0x1/0x1 -j DROP", incoming, Undecided},
		{"bits beside such a mark", "*mangle;:PREROUTING ACCEPT [0:0];-A PREROUTING -m ttl --ttl-lt 5 -j MARK --set-xmark 0x1/0x1;*filter;:INPUT ACCEPT [0:0];-A INPUT -m mark --mark 0x2/0x2 -j DROP", incoming, Passes},
		{"some are not tracked", "*raw;:PREROUTING ACCEPT [0:0];-A PREROUTING -m ttl --ttl-lt 5 -j CT --notrack;*filter;:INPUT ACCEPT [0:0];-A INPUT -m conntrack --ctstate UNTRACKED -j DROP", incoming, Undecided},
		{"an unknown target", "*filter;:INPUT ACCEPT [0:0];-A INPUT -p udp -j NFQUEUE --queue-num 1", incoming, Undecided},
		{"an unknown target for others", "*filter;:INPUT ACCEPT [0:0];-A INPUT -p tcp -j NFQUEUE --queue-num 1", incoming, Passes},
		{"an unknown condition that accepts", "*filter;:INPUT ACCEPT [0:0];-A INPUT -m set --match-set x src -j ACCEPT", incoming, Passes},
		{"an unknown condition before the policy", "*filter;:INPUT DROP [0:0];-A INPUT -m set --match-set x src -j ACCEPT", incoming, Undecided},
		{"an unknown option", "*filter;:INPUT ACCEPT [0:0];-A INPUT --no-such -j DROP", incoming, Undecided},
		{"a mask with holes", "*filter;:INPUT ACCEPT [0:0];-A INPUT -s 192.0.0.4/255.0.0.255 -j DROP", incoming, Undecided},
		{"part of the pods", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -d 10.5.3.128/25 -p tcp -j DROP", toPods, Partly},
		{"a queue for one pod", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -d 10.5.3.7/32 -j NFQUEUE --queue-num 1", toPods, Partly},
		{"a queue for one pod, then a policy", "*filter;:FORWARD DROP [0:0];-A FORWARD -d 10.5.3.7/32 -j NFQUEUE --queue-num 1", toPods, Undecided},
		{"a queue for all pods", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -d 10.5.3.0/24 -j NFQUEUE --queue-num 1", toPods, Undecided},
		{"a queue for a part of the addresses", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -d 10.5.3.128/25 -j NFQUEUE --queue-num 1", toPods, Undecided},
		{"a queue for all but one pod", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD ! -d 10.5.3.7/32 -j NFQUEUE --queue-num 1", toPods, Undecided},
		{"a queue for all pods after one", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -d 10.5.3.7/32 -j ACCEPT;-A FORWARD -j NFQUEUE --queue-num 1", toPods, Undecided},
		{"a queue on any device", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -o cali+ -j NFQUEUE --queue-num 1", toPods.with(func(p *Packet) { p.Out = AnyDevice }), Undecided},
		{"a set of addresses for one pod", policy + ";-A fw -m set --match-set x src -j DROP", toPods, Partly},
		{"a set of addresses for one pod, no other accepted", policy + ";-A fw -m set --match-set x src -j DROP;-A FORWARD -j DROP", toPods, Dropped},
		{"a set of addresses that is accepted for one pod", policy + ";-A fw -m set --match-set x src -j ACCEPT;-A FORWARD -j DROP", toPods, Undecided},
		{"a set of addresses that returns for one pod", policy + ";-A fw -m set --match-set x src -j RETURN;-A fw -j DROP", toPods, Partly},
		{"a set of addresses after one pod", "*filter;:FORWARD ACCEPT [0:0];-A FORWARD -d 10.5.3.7/32 -j ACCEPT;-A FORWARD -m set --match-set x src -j DROP", toPods, Undecided},
		{"kube-router", policy + ";-A fw -m set --match-set KUBE-SRC-A src -m set --match-set KUBE-DST-A dst -j MARK --set-xmark 0x10000/0x10000;" +
			"-A fw -m mark ! --mark 0x10000/0x10000 -j REJECT;-A fw -j MARK --set-xmark 0x20000/0x20000;-A FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT", toPods, Partly},
		{"one pod, and all others", policy + ";-A fw -j DROP;-A FORWARD -j DROP", toPods, Dropped},
		{"a part of one pod, and all others", policy + ";-A fw -p tcp -j ACCEPT;-A fw -j DROP;-A FORWARD -j DROP", toPods, Mostly},
		{"a part of one pod", policy + ";-A fw -p tcp -j ACCEPT;-A fw -j DROP", toPods, Partly},
		{"a published port of Docker", "*filter;:FORWARD ACCEPT [0:0];:DOCKER - [0:0];-A FORWARD -o cni0 -j DOCKER;" +
			"-A DOCKER -d 10.5.3.2/32 ! -i cni0 -o cni0 -p tcp -m tcp --dport 80 -j ACCEPT;-A DOCKER ! -i cni0 -o cni0 -j DROP", toPods, Mostly},
		{"a container of Docker in the table raw", "*raw;:PREROUTING ACCEPT [0:0];-A PREROUTING -d 10.5.3.2/32 ! -i cni0 -j DROP", toPods, Mostly},
		{"a flag in the table raw", "*raw;:PREROUTING ACCEPT [0:0];-A PREROUTING -p tcp -m tcp --tcp-flags SYN,FIN SYN,FIN -j DROP", toPods, Partly},
		{"ufw without routed packets", "*filter;:FORWARD DROP [0:0];:before - [0:0];:reject - [0:0];-A FORWARD -j before;-A FORWARD -j reject;" +
			"-A before -p icmp -m icmp --icmp-type 8 -j ACCEPT;-A reject -j REJECT --reject-with icmp-port-unreachable;-A FORWARD -j ACCEPT", toPods, Mostly},
		{"a policy behind an exception", "*filter;:FORWARD DROP [0:0];-A FORWARD -p icmp -j ACCEPT", toPods, Mostly},
		{"a chain for some, with an exception", "*filter;:FORWARD ACCEPT [0:0];:tcp - [0:0];-A FORWARD -p tcp -g tcp;-A tcp -p tcp -m tcp --dport 80 -j ACCEPT;-A tcp -j DROP", toPods, Partly},
		{"the same with a jump", "*filter;:FORWARD ACCEPT [0:0];:tcp - [0:0];-A FORWARD -p tcp -j tcp;-A tcp -p tcp -m tcp --dport 80 -j ACCEPT;-A tcp -j DROP", toPods, Partly},
		{"the node's own address, if that is not known", "*filter;:INPUT ACCEPT [0:0];-A INPUT -d 192.168.0.3/32 -m set --match-set x src -j DROP",
			incoming.with(func(p *Packet) { p.Dst = pfx("0.0.0.0/0") }), Undecided},
		{"all pods in two rules", "*filter;:FORWARD DROP [0:0];-A FORWARD -m iprange --src-range 10.5.0.0-10.5.255.255 -j ACCEPT", toPods, Passes},
		{"a device with a comma", "*filter;:INPUT ACCEPT [0:0];-A INPUT -i eth0,eth1 -j DROP", incoming, Passes},
		{"devices with a beginning", "*filter;:INPUT ACCEPT [0:0];-A INPUT -i eth+ -j DROP", incoming, Dropped},
		{"jumps in a circle", "*filter;:INPUT ACCEPT [0:0];:a - [0:0];-A INPUT -j a;-A a -j a", incoming, Passes},
	} {
		var r Ruleset
		r.AddIPTables(false, VariantLegacy, strings.Split(c.lines, ";"))
		if got := r.Evaluate(c.packet); got.Verdict != c.want {
			t.Errorf("%s: %+v, want %v", c.name, got, c.want)
		}
	}
}

// The reason is a condition of the rule that decides, or of one that decides whether packets reach it.
func TestReason(t *testing.T) {
	for rules, want := range map[string]string{
		"-A FORWARD -d 10.5.3.7/32 -m set --match-set a src -j DROP":                "b",
		"-A FORWARD -m set --match-set a src -p icmp -s 192.168.0.0/24 -j ACCEPT":   "b",
		"-A FORWARD -d 10.5.3.7/32 -m set --match-set a src -j ACCEPT":              "a",
		"-A FORWARD -m set --match-set a src -j RETURN":                             "a",
		"-A FORWARD -m set --match-set a src -j fw;-A fw -j ACCEPT":                 "a",
		"-A FORWARD -m set --match-set a src -j fw;-A fw -p icmp -j RETURN":         "b",
		"-A FORWARD -j fw;-A fw -m set --match-set a src -j RETURN;-A fw -j ACCEPT": "a",
		"-A FORWARD -j to;-A to -g fw;-A fw -m set --match-set a src -j ACCEPT":     "a",
	} {
		var r Ruleset
		r.AddIPTables(false, VariantLegacy, strings.Split("*filter;:FORWARD ACCEPT [0:0];:fw - [0:0];:to - [0:0];"+rules+";-A FORWARD -m set --match-set b src -j DROP", ";"))
		if got := r.Evaluate(toPods); got.Verdict != Undecided || got.Reason != "--match-set "+want+" src" {
			t.Errorf("%s: %+v, want the set %s", rules, got, want)
		}
	}
}

// nft returns a base chain of input with one rule, in nft's JSON.
func nft(t *testing.T, policy, expressions string) *Ruleset {
	t.Helper()
	text := fmt.Sprintf(`{"nftables":[{"chain":{"family":"inet","table":"t","name":"c","hook":"input","prio":0,"policy":%q}},
		{"chain":{"family":"inet","table":"t","name":"other"}},
		{"rule":{"family":"inet","table":"t","chain":"c","handle":7,"expr":[%s]}}]}`, policy, expressions)
	r := &Ruleset{}
	if err := r.AddNFT([]byte(text)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

// TestUnknownExpressions has expressions that this package does not know, or that
// nft prints in another form. None of them makes a packet pass that may be dropped.
func TestUnknownExpressions(t *testing.T) {
	for expressions, want := range map[string]Verdict{
		`{"match":{"op":"==","left":{"socket":{"key":"transparent"}},"right":1}},{"drop":null}`:                                                Undecided,
		`{"match":{"op":"==","left":{"meta":{"key":"no-such"}},"right":1}},{"drop":null}`:                                                      Undecided,
		`{"match":{"op":"==","left":{"payload":{"base":"ih","offset":0,"len":8}},"right":1}},{"drop":null}`:                                    Undecided,
		`{"match":{"op":"~","left":{"meta":{"key":"mark"}},"right":0}},{"drop":null}`:                                                          Undecided,
		`{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":"no-such-service"}},{"drop":null}`:                  Undecided,
		`{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":{"set":["no-such", 8472]}}},{"drop":null}`:          Dropped,
		`{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":"@no-such-set"}},{"drop":null}`:                     Undecided,
		`{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":{"elem":{"val":8472,"counter":{}}}}},{"drop":null}`: Dropped,
		`{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"ttl"}},"right":64}},{"drop":null}`:                                    Partly,
		`{"match":{"op":"==","left":{"payload":{"protocol":"ip6","field":"hoplimit"}},"right":64}},{"drop":null}`:                              Passes,
		`{"match":{"op":"==","left":{"meta":{"key":"protocol"}},"right":8}},{"drop":null}`:                                                     Dropped,
		`{"match":{"op":"==","left":{"meta":{"key":"protocol"}},"right":34525}},{"drop":null}`:                                                 Passes,
		`{"xt":{"type":"target","name":"NFQUEUE"}}`:                                                                                            Undecided,
		`{"no such statement":null}`:          Undecided,
		`{"jump":{"target":"no-such-chain"}}`: Undecided,
		`{"queue":{"num":1}}`:                 Undecided,
		`{"vmap":{"key":{"payload":{"protocol":"udp","field":"dport"}},"data":"@no-such-map"}}`:                        Undecided,
		`{"vmap":{"key":{"numgen":{"mode":"random","mod":2}},"data":{"set":[[0,{"accept":null}],[1,{"drop":null}]]}}}`: Partly,
		`{"mangle":{"key":{"meta":{"key":"mark"}},"value":2}},{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"ttl"}},"right":64}},
			{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"|":[{"meta":{"key":"mark"}},1]}}},
			{"match":{"op":"==","left":{"meta":{"key":"mark"}},"right":{"range":[1,5]}}},{"drop":null}`: Undecided,
		`{"match":{"op":"!=","left":{"ct":{"key":"state"}},"right":["new","untracked"]}},{"drop":null}`: Dropped,
		`{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["new","untracked"]}},{"drop":null}`: Dropped,
		`{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":{"|":[8,64]}}},{"drop":null}`:        Dropped,
		`{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":{"|":[2,4]}}},{"drop":null}`:         Passes,
		// Older and newer forms.
		`{"match":{"op":"!","left":{"ct":{"key":"state"}},"right":[2,4]}},{"drop":null}`:                                              Dropped,
		`{"match":{"op":"!","left":{"ct":{"key":"state"}},"right":"new"}},{"drop":null}`:                                              Passes,
		`{"match":{"op":"!","left":{"payload":{"protocol":"tcp","field":"flags"}},"right":[1,2,4,8,16,32]}},{"drop":null}`:            Passes,
		`{"match":{"op":"==","left":{"fib":{"result":"check","flags":["saddr","iif"]}},"right":false}},{"drop":null}`:                 Passes,
		`{"vmap":{"key":{"fib":{"result":"check","flags":["saddr"]}},"data":{"set":[[false,{"drop":null}],[true,{"accept":null}]]}}}`: Passes,
		`{"vmap":{"key":{"fib":{"result":"check","flags":["saddr"]}},"data":{"set":[[false,{"accept":null}],[true,{"drop":null}]]}}}`: Dropped,
		`{"xt":null},{"drop":null}`: Undecided,
		`{"match":{"op":">=","left":{"meta":{"key":"iif"}},"right":5}},{"drop":null}`:        Undecided,
		`{"match":{"op":">","left":{"meta":{"key":"iifname"}},"right":"eth"}},{"drop":null}`: Undecided,
		// What nft has no JSON for is text, and never left out.
		`"jump {\n\t\t\tdrop\n\t\t}"`: Undecided, `""`: Undecided, `{}`: Undecided, `{"":null}`: Undecided,
		`"a statement",{"drop":null}`: Undecided,
		`{"match":{"op":"==","left":{"ip option":{"name":"rr","field":"type"}},"right":false}},{"drop":null}`:                                                           Undecided,
		`{"match":{"op":"==","left":{"dccp option":{"type":1}},"right":true}},{"drop":null}`:                                                                            Undecided,
		`{"match":{"op":"==","left":{"|":[{"payload":{"protocol":"udp","field":"dport"}},1]},"right":8473}},{"drop":null}`:                                              Undecided,
		`{"match":{"op":"==","left":{"^":[{"payload":{"protocol":"udp","field":"dport"}},1]},"right":8473}},{"drop":null}`:                                              Undecided,
		`{"match":{"op":"==","left":{"<<":[{"payload":{"protocol":"udp","field":"dport"}},1]},"right":8473}},{"drop":null}`:                                             Undecided,
		`{"match":{"op":"==","left":{">>":[{"payload":{"protocol":"udp","field":"dport"}},1]},"right":8473}},{"drop":null}`:                                             Undecided,
		`{"match":{"op":"==","left":{"&":[{"payload":{"protocol":"udp","field":"dport"}},1,2]},"right":0}},{"drop":null}`:                                               Undecided,
		`{"match":{"op":"==","left":{"^":[{"payload":{"protocol":"udp","field":"dport"}},{"payload":{"protocol":"udp","field":"sport"}}]},"right":8473}},{"drop":null}`: Undecided,
		`{"match":{"op":"==","left":{"|":[{"payload":{"protocol":"ip","field":"ttl"}},1]},"right":65}},{"drop":null}`:                                                   Undecided,
		`{"match":{"op":"==","left":"meta mark","right":0}},{"drop":null}`:                                                                                              Undecided,
		`{"match":{"op":"==","left":{"&":[{"payload":{"protocol":"udp","field":"dport"}},65535]},"right":8472}},{"drop":null}`:                                          Dropped,
		`{"match":{"op":"==","left":{"ct":{"key":"saddr","dir":"original"}},"right":"192.168.0.4"}},{"drop":null}`:                                                      Dropped,
		`{"match":{"op":"==","left":{"ct":{"key":"ip saddr","dir":"original"}},"right":"192.168.0.3"}},{"drop":null}`:                                                   Passes,
		`{"match":{"op":"==","left":{"ct":{"key":"ip6 saddr","dir":"original"}},"right":"fd00::4"}},{"drop":null}`:                                                      Passes,
		`{"match":{"op":"==","left":{"ct":{"key":"daddr","dir":"original"}},"right":"192.168.0.3"}},{"drop":null}`:                                                      Dropped,
		`{"match":{"op":"==","left":{"ct":{"key":"ip daddr","dir":"original"}},"right":"192.168.0.4"}},{"drop":null}`:                                                   Passes,
		`{"match":{"op":"==","left":{"ct":{"key":"ip6 daddr","dir":"original"}},"right":"fd00::3"}},{"drop":null}`:                                                      Passes,
		`{"match":{"op":"==","left":{"ct":{"key":"protocol","dir":"original"}},"right":"udp"}},{"drop":null}`:                                                           Dropped,
		`{"match":{"op":"==","left":{"ct":{"key":"protocol","dir":"original"}},"right":"tcp"}},{"drop":null}`:                                                           Passes,
		`{"match":{"op":"==","left":{"ct":{"key":"proto-src","dir":"original"}},"right":4000}},{"drop":null}`:                                                           Partly,
		`{"match":{"op":"==","left":{"ct":{"key":"proto-dst","dir":"original"}},"right":53}},{"drop":null}`:                                                             Passes,
		`{"match":{"op":"==","left":{"ct":{"key":"saddr","dir":"reply"}},"right":"192.168.0.4"}},{"drop":null}`:                                                         Undecided,
		`{"match":{"op":">","left":{"ct":{"key":"bytes","dir":"original"}},"right":1000}},{"drop":null}`:                                                                Partly,
		`{"match":{"op":"==","left":{"tcp option":{"name":"maxseg","field":"size"}},"right":1400}},{"drop":null}`:                                                       Passes,
		`{"match":{"op":"==","left":{"osf":{"key":"name"}},"right":"Linux"}},{"drop":null}`:                                                                             Passes,
		`{"match":{"op":"==","left":{"sctp chunk":{"name":"data"}},"right":true}},{"drop":null}`:                                                                        Passes,
		`{"match":{"op":"==","left":{"payload":{"tunnel":"vxlan","protocol":"ip","field":"saddr"}},"right":"10.5.0.1"}},{"drop":null}`:                                  Partly,
		`{"match":{"op":"==","left":{"payload":{"protocol":"ether","field":"saddr"}},"right":"02:00:00:00:00:01"}},{"drop":null}`:                                       Partly,
		`{"match":{"op":"==","left":{"payload":{"protocol":"arp","field":"operation"}},"right":1}},{"drop":null}`:                                                       Passes,
		`{"counter":null},{"log":null},{"drop":null}`:                                                                                                                   Dropped,
	} {
		got := nft(t, "accept", expressions).Evaluate(incoming)
		if got.Verdict != want || (want == Undecided) != (got.Reason != "") {
			t.Errorf("%s: %+v, want %v", expressions, got, want)
		}
	}
	if err := (&Ruleset{}).AddNFT([]byte("table inet x")); err == nil {
		t.Error("text is taken for JSON")
	}
}

// A queue for a set of pods, such as that of kube-network-policies, leaves the others alone.
func TestQueue(t *testing.T) {
	for element, want := range map[string]Verdict{`"10.5.3.7"`: Partly, `"10.5.3.7","10.5.3.9"`: Partly, `"10.5.4.7"`: Passes,
		`{"prefix":{"addr":"10.5.3.0","len":24}}`: Undecided, `{"range":["10.5.3.2","10.5.3.254"]}`: Undecided, "": Passes} {
		r := &Ruleset{}
		if err := r.AddNFT([]byte(`{"nftables":[{"chain":{"family":"inet","table":"t","name":"c","hook":"postrouting","prio":95,"policy":"accept"}},
			{"set":{"family":"inet","name":"podips-v4","table":"t","type":"ipv4_addr","elem":[` + element + `]}},
			{"rule":{"family":"inet","table":"t","chain":"c","handle":6,"expr":[{"match":{"op":"==","left":{"meta":{"key":"skuid"}},"right":0}},{"accept":null}]}},
			{"rule":{"family":"inet","table":"t","chain":"c","handle":7,"expr":[{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},
				"right":"@podips-v4"}},{"queue":{"num":100,"flags":"bypass"}}]}}]}`)); err != nil {
			t.Fatal(err)
		}
		if got := r.Evaluate(toPods); got.Verdict != want {
			t.Errorf("%s: %+v, want %v", element, got, want)
		}
	}
}

// Chains that were read as iptables prints them keep their policy. Our own guard's are
// not read at all.
func TestTablesOfIPTables(t *testing.T) {
	const text = `{"nftables":[{"chain":{"family":%q,"table":%q,"name":"INPUT","hook":"input","prio":0,"policy":"drop"}}]}`
	for _, c := range []struct {
		variant, family, table string
		want                   Verdict
	}{
		{VariantNFT, "ip", "filter", Passes}, {VariantLegacy, "ip", "filter", Dropped}, {VariantNFT, "ip", "mine", Dropped},
		{VariantNFT, "inet", "filter", Dropped}, {VariantNFT, "ip6", "filter", Passes}, {VariantNFT, "bridge", "filter", Passes},
		{VariantNFT, "inet", "flannel-guard", Passes}, {VariantNFT, "inet", "flannel-guard-1a2b3c4", Passes},
	} {
		r := &Ruleset{}
		r.AddIPTables(false, c.variant, []string{"*filter", ":INPUT ACCEPT [0:0]"})
		if err := r.AddNFT([]byte(fmt.Sprintf(text, c.family, c.table))); err != nil {
			t.Fatal(err)
		}
		if got := r.Evaluate(incoming); got.Verdict != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// In a chain that both print, only rules with an extension are read from iptables, and
// only if both print the same number of rules.
func TestRulesOfBoth(t *testing.T) {
	const chain = `{"chain":{"family":"ip","table":"nat","name":"INPUT","hook":"input","prio":0,"policy":"accept"}}`
	rule := func(expr string) string {
		return `,{"rule":{"family":"ip","table":"nat","chain":"INPUT","handle":1,"expr":[` + expr + `]}}`
	}
	const (
		other = `{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"192.0.2.1"}},{"drop":null}`
		state = `{"xt":{"type":"match","name":"conntrack"}},{"drop":null}`
		older = `{"xt":null},{"drop":null}` // of nft before 1.0.6
		serve = `{"jump":{"target":"KUBE-SERVICES"}}`
		kube  = `,{"chain":{"family":"ip","table":"nat","name":"KUBE-SERVICES"}},{"rule":{"family":"ip","table":"nat","chain":"KUBE-SERVICES","handle":1,"expr":[{"drop":null}]}}`
	)
	invalid, jump := "-A INPUT -m conntrack --ctstate INVALID -j DROP", "-A INPUT -j KUBE-SERVICES"
	for name, c := range map[string]struct {
		printed []string
		nft     string
		want    Verdict
	}{
		"a condition is not printed":        {[]string{"-A INPUT -j DROP"}, rule(other), Passes},
		"an extension":                      {[]string{"-A INPUT -j DROP", invalid}, rule(other) + rule(state), Passes},
		"an extension, other number":        {[]string{invalid}, rule(other) + rule(state), Undecided},
		"an older nft":                      {[]string{"-A INPUT -j DROP", invalid}, rule(other) + rule(older), Passes},
		"an older nft, other number":        {[]string{invalid}, rule(other) + rule(older), Undecided},
		"kube-proxy's chain is not printed": {[]string{jump}, kube + rule(serve), Passes},
		"no rule in nft":                    {[]string{"-A INPUT -j DROP"}, "", Dropped},
	} {
		r := &Ruleset{}
		r.AddIPTables(false, VariantNFT, append([]string{"*nat", ":INPUT ACCEPT [0:0]"}, c.printed...))
		if err := r.AddNFT([]byte(`{"nftables":[` + chain + c.nft + `]}`)); err != nil {
			t.Fatal(err)
		}
		if got := r.Evaluate(incoming); got.Verdict != c.want {
			t.Errorf("%s: %+v, want %v", name, got, c.want)
		}
	}
}

// A rule set that takes too long is Undecided.
func TestBudget(t *testing.T) {
	var elements []string
	for i := range 1000 {
		elements = append(elements, fmt.Sprintf(`{"concat":[%d,1]}`, i))
	}
	match := `{"match":{"op":"==","left":{"concat":[{"payload":{"protocol":"udp","field":"dport"}},{"meta":{"key":"mark"}}]},"right":{"set":[` + strings.Join(elements, ",") + `]}}}`
	r := nft(t, "accept", strings.Repeat(match+",", 3)+`{"drop":null}`)
	if got := r.Evaluate(incoming); got.Verdict != Passes {
		t.Errorf("%+v", got)
	}
	c := r.base[0]
	for range 3000 {
		c.rules = append(c.rules, c.rules[0])
	}
	if got := r.Evaluate(incoming); got.Verdict != Undecided {
		t.Errorf("%+v", got)
	}
}

// A map of verdicts takes its size from the budget.
func TestBudgetOfMaps(t *testing.T) {
	var elements []string
	for port := range 1000 {
		elements = append(elements, fmt.Sprintf(`[%d,{"accept":null}]`, port))
	}
	r := nft(t, "accept", `{"vmap":{"key":{"payload":{"protocol":"udp","field":"dport"}},"data":{"set":[`+strings.Join(elements, ",")+`]}}}`)
	c := r.base[0]
	c.rules = slices.Repeat(c.rules, 1000)
	if got := r.Evaluate(incoming); got.Verdict != Passes {
		t.Errorf("%+v", got)
	}
	c.rules = slices.Repeat(c.rules, 3)
	if got := r.Evaluate(incoming); got.Verdict != Undecided {
		t.Errorf("%+v", got)
	}
}

// A rule with what this package cannot evaluate is shown with what identifies that.
func TestUnknownText(t *testing.T) {
	for left, want := range map[string]string{
		`{"socket":{"key":"transparent"}}`:                                "socket transparent 1",
		`{"tcp option":{"name":"maxseg","field":"size"}}`:                 "tcp option maxseg size 1",
		`{"rt":{"key":"nexthop","family":"ip"}}`:                          "rt ip nexthop 1",
		`{"ipsec":{"key":"reqid","dir":"in","spnum":0}}`:                  "ipsec in reqid 1",
		`{"map":{"key":{"meta":{"key":"mark"}},"data":{"set":[[1, 2]]}}}`: "meta mark map { 1 : 2 } 1",
	} {
		got := nft(t, "drop", `{"match":{"op":"==","left":`+left+`,"right":1}},{"accept":null}`).base[0].rules[0].text
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", left, got, want)
		}
	}
}

// FuzzRules: any text is evaluated or refused.
func FuzzRules(f *testing.F) {
	for _, name := range []string{"zones", "services"} {
		raw, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, "*filter\n:INPUT DROP [0:0]\n-A INPUT -p udp -m multiport ! --ports 53,8472:9000 -j REJECT")
	}
	f.Fuzz(func(t *testing.T, nft []byte, lines string) {
		r := &Ruleset{}
		r.AddIPTables(false, VariantNFT, strings.Split(lines, "\n"))
		if err := r.AddNFT(nft); err == nil && !json.Valid(nft) {
			t.Error("it is not JSON")
		}
		for _, p := range []Packet{incoming, outgoing, toPods, fromPods} {
			got := r.Evaluate(p)
			if (got.Verdict == Passes) != (got.Rule == "") || (got.Verdict == Undecided) != (got.Reason != "") {
				t.Errorf("%+v: %+v", p, got)
			}
		}
	})
}
