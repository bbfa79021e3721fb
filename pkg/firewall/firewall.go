// Package firewall computes the node's masquerade and forward rules. The rules are one list, a pure function of a Config
// (Rules). Package linux/firewall writes them into the kernel. On Windows, HNS masquerades. SavedRules
// parses what iptables-save prints, for the doctor as well.
package firewall

import (
	"log/slog"
	"net/netip"
	"time"
)

// Options are what a writer of the rules needs.
type Options struct {
	Log      *slog.Logger
	Instance string // see cmd/flanneld/instance.go
	// Resync is the interval of the checks without a notification (--iptables-resync); 0 or less: none.
	Resync time.Duration
	// Repaired is called after each repair of rules that another program had changed, once for each table. May be nil.
	Repaired func()
}

// Writer selects how rules are written into the kernel.
type Writer string

const (
	IPTables Writer = "iptables"
	NFTables Writer = "nftables"
)

// Config is the input of Rules. It is comparable, and a writer plans anew only when it changes.
type Config struct {
	Writer      Writer
	V4, V6      Family // a zero Family is disabled: rules of that family are removed
	Masquerade  bool   // --ip-masq
	Forward     bool   // --iptables-forward-rules
	RandomFully bool   // masquerade with random source ports; ignored (with a warning) where it is not supported
}

// Family is one address family of the pod network.
type Family struct {
	Network netip.Prefix // the whole cluster's, masked; the zero Prefix: family disabled
	Subnet  netip.Prefix // this node's part of it, masked
}

// Verdict is what happens to a packet that a Rule matches.
type Verdict string

const (
	Return     Verdict = "RETURN"
	Accept     Verdict = "ACCEPT"
	Masquerade Verdict = "MASQUERADE"
)

// Rule matches packets by all of its non-zero fields.
type Rule struct {
	Mark           uint32       // set bits of the packet's mark; the mask is the same value
	Src, Dst       netip.Prefix // zero: any
	NotSrc, NotDst bool         // invert the match of Src or Dst
	Verdict        Verdict
	RandomFully    bool // Masquerade only
}

// Chain is a list of rules, and the hook from which packets reach it.
type Chain struct {
	Name    string // of the iptables chain
	Table   string // of the iptables chain, "nat" or "filter"; also the type of the nftables chain
	Parent  string // the builtin iptables chain that jumps here, after the rules of others
	Comment string // on the jump and on every rule; "": none
	NFTName string // of the chain in our nftables table
	Rules   []Rule
}

const (
	postrtg = "FLANNEL-POSTRTG"
	fwd     = "FLANNEL-FWD"
)

// Chains returns all chains that the default flanneld instance can own in one family, without rules.
func Chains() []Chain {
	return []Chain{
		{Name: postrtg, Table: "nat", Parent: "POSTROUTING", Comment: "flanneld masq", NFTName: "postrtg"},
		{Name: fwd, Table: "filter", Parent: "FORWARD", Comment: "flanneld forward", NFTName: "forward"},
	}
}

// kubeMark is set by kube-proxy on packets that it masquerades itself (--iptables-masquerade-bit 14, its default).
const kubeMark = 0x4000

// Rules returns the chains that c asks for in family f; nil if f is disabled or c asks for no rules.
func Rules(c Config, f Family) []Chain {
	if !f.Network.IsValid() {
		return nil
	}
	var want []Chain
	for _, chain := range Chains() {
		switch {
		case chain.Name == postrtg && c.Masquerade:
			chain.Rules = masquerade(f, c.RandomFully)
		case chain.Name == fwd && c.Forward:
			chain.Rules = []Rule{{Src: f.Network, Verdict: Accept}, {Dst: f.Network, Verdict: Accept}}
		default:
			continue
		}
		want = append(want, chain)
	}
	return want
}

// masquerade returns the rules of the chain in POSTROUTING, in order: the first that matches decides.
func masquerade(f Family, random bool) []Rule {
	return []Rule{
		{Mark: kubeMark, Verdict: Return},
		// Pods see each other's own addresses, on every node.
		{Src: f.Subnet, Dst: f.Network, Verdict: Return},
		{Src: f.Network, Dst: f.Subnet, Verdict: Return},
		// From outside to a pod of this node: the answer passes this node anyway, so the pod may see the client's
		// address.
		{Src: f.Network, NotSrc: true, Dst: f.Subnet, Verdict: Return},
		{Src: f.Network, Dst: multicast(f.Network), NotDst: true, Verdict: Masquerade, RandomFully: random},
		// From outside through this node to a pod of another node: the answer must return through this node.
		{Src: f.Network, NotSrc: true, Dst: f.Network, Verdict: Masquerade, RandomFully: random},
	}
}

// multicast returns the multicast network of a network's family.
func multicast(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return netip.MustParsePrefix("224.0.0.0/4")
	}
	return netip.MustParsePrefix("ff00::/8")
}
