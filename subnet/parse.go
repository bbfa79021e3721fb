package subnet

import (
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/conf"
)

// family has the keys of the configuration for one address family, and what their values may be.
type family struct {
	enable, network, length, min, max string // keys
	on                                bool   // the family is enabled by default
	bits                              int    // of an address
	usual                             int    // the default of SubnetLen, if the network has room for such subnets
	bad                               []reserved
}

// reserved is a range of addresses that no pod can have. A network that overlaps one is a problem.
type reserved struct {
	prefix netip.Prefix
	name   string
}

// spare is how many bits longer than the network's a subnet's prefix must be, so that four subnets fit, and how many
// bits a subnet must leave for the addresses of pods.
const spare = 2

// families are IPv4 and IPv6, in this order.
var families = [2]family{{
	enable: "EnableIPv4", network: "Network", length: "SubnetLen", min: "SubnetMin", max: "SubnetMax",
	on: true, bits: 32, usual: 24,
	bad: []reserved{
		{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
		{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("255.0.0.0/8"), "broadcast"},
	},
}, {
	enable: "EnableIPv6", network: "IPv6Network", length: "IPv6SubnetLen", min: "IPv6SubnetMin", max: "IPv6SubnetMax",
	on: false, bits: 128, usual: 64,
	bad: []reserved{
		{netip.MustParsePrefix("::/128"), "unspecified"},
		{netip.MustParsePrefix("::1/128"), "loopback"},
		{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
		{netip.MustParsePrefix("fe80::/10"), "link-local"},
		{netip.MustParsePrefix("ff00::/8"), "multicast"},
	},
}}

// ParseConfig reads the network configuration. The caller has the backend read root.Object("Backend"), and then calls Err
// and Warnings of root. If Err returns an error, cfg must not be used. A Backend without a Type is not an error: the
// caller, which knows the backends, chooses one.
func ParseConfig(raw []byte) (cfg Config, root *conf.Object) {
	root = conf.Parse(raw)
	on := [2]bool{}
	for i, f := range families {
		on[i] = root.Bool(f.enable, f.on)
	}
	if !on[0] && !on[1] {
		root.Problem("EnableIPv4", "false, and so is EnableIPv6; enable at least one of them")
	}
	cfg.V4 = families[0].read(root, on[0])
	cfg.V6 = families[1].read(root, on[1])
	cfg.NFTables = root.Bool("EnableNFTables", false)
	cfg.readGuard(root)
	cfg.Backend = strings.ToLower(root.Object("Backend").String("Type", ""))
	return cfg, root
}

// read returns the network of one family; zero: it is off, or invalid. root records the problems: those of its own
// methods, which return the default or a zero value then, and those that Problem adds, here and below.
func (f family) read(root *conf.Object, on bool) Network {
	if !on {
		root.Ignore(f.network, f.length, f.min, f.max)
		if root.Has(f.network) {
			root.Warn(f.network, "without effect, because %s is false", f.enable)
		}
		return Network{}
	}
	var n Network
	n.Prefix = f.prefix(root)
	// These are checked even if the network is invalid, so that all problems are reported at once.
	n.SubnetLen = root.Int(f.length, 0, 1, f.bits-spare) // 0: not given, or a problem
	n.Min, n.Max = f.addr(root, f.min), f.addr(root, f.max)
	wrongLength := n.SubnetLen == 0 && root.Has(f.length)
	if !n.Prefix.IsValid() || wrongLength {
		return Network{}
	}
	longest := f.bits - spare
	switch least := n.Prefix.Bits() + spare; {
	case n.SubnetLen == 0:
		n.SubnetLen = max(f.usual, least)
	case n.SubnetLen < least:
		root.Problem(f.length, "%d leaves fewer than four subnets in %s; use %d to %d", n.SubnetLen, n.Prefix, least, longest)
		return Network{}
	}
	f.bounds(root, &n)
	return n
}

// prefix returns the network, masked, or the zero Prefix after a problem. It reports the first one only.
func (f family) prefix(root *conf.Object) netip.Prefix {
	p := root.Prefix(f.network)
	if !p.IsValid() {
		if !root.Has(f.network) {
			root.Problem(f.network, "missing; give the pods' network, or set %s to false", f.enable)
		}
		return netip.Prefix{}
	}
	problem := ""
	switch a := p.Addr(); {
	case a.Is4In6() && p.Bits() >= 96: // ::ffff:10.5.0.0/112; shorter ones are refused below
		problem = fmt.Sprintf("is IPv4 in IPv6 form; write %s", netip.PrefixFrom(a.Unmap(), p.Bits()-96))
	case a.BitLen() != f.bits && f.bits == 32:
		problem = "is an IPv6 network; give it as IPv6Network"
	case a.BitLen() != f.bits:
		problem = "is an IPv4 network; give it as Network"
	case p.Bits() > f.bits-2*spare:
		problem = fmt.Sprintf("is too small for four subnets; use /%d or shorter", f.bits-2*spare)
	}
	for _, r := range f.bad {
		if problem == "" && p.Overlaps(r.prefix) {
			problem = fmt.Sprintf("holds %s addresses (%s); use a private network", r.name, r.prefix)
		}
	}
	if problem != "" {
		root.Problem(f.network, "%s %s", p, problem)
		return netip.Prefix{}
	}
	return p.Masked()
}

// addr returns the address at key; zero: there is none, or it is invalid.
func (f family) addr(root *conf.Object, key string) netip.Addr {
	a := root.Addr(key)
	switch {
	case !a.IsValid() || a.BitLen() == f.bits && !a.Is4In6():
		return a
	case a.Is4In6() && f.bits == 32:
		root.Problem(key, "%s is IPv4 in IPv6 form; write %s", a, a.Unmap())
	default:
		root.Problem(key, "%s is of the other address family than %s", a, f.network)
	}
	return netip.Addr{}
}

// bounds checks Min and Max, and sets their defaults: the second and the last subnet of the network, as in flannel.
func (f family) bounds(root *conf.Object, n *Network) {
	second := lastAddr(netip.PrefixFrom(n.Prefix.Addr(), n.SubnetLen)).Next()
	last := netip.PrefixFrom(lastAddr(n.Prefix), n.SubnetLen).Masked().Addr()
	var ok [2]bool // whether Min and Max are valid, so that they can be compared
	n.Min, ok[0] = f.bound(root, f.min, n, n.Min, second)
	n.Max, ok[1] = f.bound(root, f.max, n, n.Max, last)
	if ok[0] && ok[1] && n.Max.Less(n.Min) {
		root.Problem(f.max, "%s is below %s %s; raise it, or lower %s", n.Max, f.min, n.Min, f.min)
	}
}

// bound returns a, the value at key, if it is where a subnet begins, or else the default def, and whether the value at
// key is valid. A key that is not given is valid. a is zero if addr has recorded a problem.
func (f family) bound(root *conf.Object, key string, n *Network, a, def netip.Addr) (netip.Addr, bool) {
	base := netip.PrefixFrom(a, n.SubnetLen).Masked().Addr()
	switch {
	case !a.IsValid():
		return def, !root.Has(key)
	case !n.Prefix.Contains(a):
		root.Problem(key, "%s is outside %s %s; use a subnet in it", a, f.network, n.Prefix)
	case base != a:
		root.Problem(key, "%s is not where a subnet of length %d begins; use %s", a, n.SubnetLen, base)
	default:
		return a, true
	}
	return def, false
}

// lastAddr returns the last address of a network.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b) // never fails: b has the length of an address
	return a
}
