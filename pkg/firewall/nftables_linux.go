//go:build linux

package firewall

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// nftPlace is our nftables table of one family. It has its own hooks, so there is no jump, and nothing of others in it.
//
// Its chains have the priorities that flannel's have: forward filter (0), postrouting srcnat (100). An accept of ours
// overrules no other table's drop, whatever the order. In postrouting the first table that translates a connection wins,
// and of chains with one priority the kernel asks the youngest first. So a repair leaves the chains registered, and does
// not move ours ahead of younger ones. Another priority would keep a flannel from taking over the table: the kernel
// refuses to change that of a chain.
type nftPlace struct {
	family nftables.TableFamily
	owner  instance
}

func (p nftPlace) table() *nftables.Table {
	name := "flannel-ipv4"
	if p.family == nftables.TableFamilyIPv6 {
		name = "flannel-ipv6"
	}
	return &nftables.Table{Family: p.family, Name: name + p.owner.suffix()}
}

func (p nftPlace) String() string {
	family := "ip"
	if p.family == nftables.TableFamilyIPv6 {
		family = "ip6"
	}
	return "nftables table " + family + " " + p.table().Name
}

// digest: reading the table is cheap enough.
func (p nftPlace) digest() uint64 { return 0 }

func (p nftPlace) list(context.Context) ([]string, error) {
	have, err := readTable(p.family, p.table().Name)
	if err != nil || have == "" {
		return nil, err
	}
	return []string{p.String()}, nil
}

// sync compares the whole table as text and, if anything differs, rewrites it in one transaction: packets see the old
// rules or the new ones, and connections that are masqueraded already are conntrack's affair.
func (p nftPlace) sync(_ context.Context, want []Chain) (int, error) {
	have, err := readTable(p.family, p.table().Name)
	if err != nil {
		return 0, err
	}
	wanted := p.wanted(want)
	if have == tableText(wanted) {
		return 0, nil
	}
	conn, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	table := p.table()
	// Adding first makes the next step succeed whether or not the table is (still) there.
	conn.AddTable(table)
	if len(want) > 0 && withoutRules(have) == withoutRules(tableText(wanted)) {
		conn.FlushTable(table)
	} else {
		conn.DelTable(table)
		if len(want) > 0 {
			conn.AddTable(table)
		}
	}
	for _, c := range wanted {
		c.Table = table
		conn.AddChain(&c.Chain) // registers its hook, unless it is there already
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: &c.Chain, Exprs: r.exprs, UserData: commentData(r.comment)})
		}
	}
	if err := conn.Flush(); shortage(err) {
		return 0, fmt.Errorf("write table: %w", err)
	} else if err != nil {
		return 0, fmt.Errorf("write table: %w: %w", errRefused, err)
	}
	return max(len(want), 1), nil
}

// nftChain and nftRule are in the kernel's terms what Chain and Rule are in ours.
type nftChain struct {
	nftables.Chain
	rules []nftRule
}

type nftRule struct {
	exprs   []expr.Any
	comment string
}

// wanted puts chains in the kernel's terms. Priorities are those of the iptables tables of the same name, so that both
// writers see a packet at the same point of its way.
func (p nftPlace) wanted(want []Chain) []nftChain {
	var all []nftChain
	for _, c := range want {
		accept := nftables.ChainPolicyAccept
		n := nftChain{Chain: nftables.Chain{Name: c.NFTName, Type: nftables.ChainType(c.Table), Policy: &accept}}
		if c.Table == "nat" {
			n.Hooknum, n.Priority = nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource
		} else {
			n.Hooknum, n.Priority = nftables.ChainHookForward, nftables.ChainPriorityFilter
		}
		for _, r := range c.Rules {
			n.rules = append(n.rules, nftRule{r.exprs(), c.Comment})
		}
		all = append(all, n)
	}
	return all
}

// exprs is the rule as the kernel keeps it, in the form that nft uses too, so that it lists them as a person would
// write them.
func (r Rule) exprs() []expr.Any {
	var e []expr.Any
	if r.Mark != 0 {
		mark := binary.NativeEndian.AppendUint32(nil, r.Mark)
		e = append(e, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mark, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark})
	}
	e = append(e, match(r.Src, r.NotSrc, 12, 8)...)
	e = append(e, match(r.Dst, r.NotDst, 16, 24)...)
	e = append(e, &expr.Counter{})
	switch r.Verdict {
	case Return:
		return append(e, &expr.Verdict{Kind: expr.VerdictReturn})
	case Accept:
		return append(e, &expr.Verdict{Kind: expr.VerdictAccept})
	default:
		return append(e, &expr.Masq{FullyRandom: r.RandomFully})
	}
}

// match compares an address of the IP header; the offsets, in bytes, are for IPv4 and IPv6.
func match(p netip.Prefix, not bool, offset4, offset6 uint32) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	offset := offset6
	if p.Addr().Is4() {
		offset = offset4
	}
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	addr := p.Masked().Addr().AsSlice()
	size := (p.Bits() + 7) / 8
	// As nft does, a prefix of whole bytes is compared without a mask.
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset}
	if p.Bits()%8 == 0 && size > 0 {
		load.Len = uint32(size)
		return []expr.Any{load, &expr.Cmp{Op: op, Register: 1, Data: addr[:size]}}
	}
	load.Len = uint32(len(addr))
	mask := make([]byte, len(addr))
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []expr.Any{load,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: load.Len, Mask: mask, Xor: make([]byte, len(addr))},
		&expr.Cmp{Op: op, Register: 1, Data: addr}}
}

// commentData is a comment in the form that nft shows; the kernel only keeps it.
func commentData(comment string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, comment)
}

// tableText is all of a table that matters, "" for no table. Two tables are equal if their texts are.
func tableText(chains []nftChain) string {
	if len(chains) == 0 {
		return ""
	}
	lines := []string{tableLine(0, uint32(len(chains)))}
	chains = slices.Clone(chains)
	// The order of chains means nothing.
	slices.SortFunc(chains, func(a, b nftChain) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range chains {
		lines = append(lines, chainLine(&c.Chain))
		for _, r := range c.rules {
			var text []string
			for _, e := range r.exprs {
				text = append(text, exprText(e))
			}
			lines = append(lines, nftRuleLine(text, commentData(r.comment)))
		}
	}
	return strings.Join(lines, "\n")
}

// withoutRules is what of a table's text is not a rule.
func withoutRules(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.HasPrefix(line, " ") })
	return strings.Join(lines, "\n")
}

// tableLine: use counts everything that a table holds beside rules, so a foreign set or chain shows.
func tableLine(flags, use uint32) string { return fmt.Sprintf("table flags %d holds %d", flags, use) }

func chainLine(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Priority == nil || c.Policy == nil {
		return "chain " + c.Name
	}
	return fmt.Sprintf("chain %s %s %d %d %d", c.Name, c.Type, *c.Hooknum, *c.Priority, *c.Policy)
}

func nftRuleLine(exprs []string, user []byte) string {
	return " " + strings.Join(exprs, " ") + " " + hex.EncodeToString(user)
}

// exprText leaves out what counters count.
func exprText(e expr.Any) string {
	if _, ok := e.(*expr.Counter); ok {
		return "counter"
	}
	return fmt.Sprintf("%T%+v", e, e)
}

// absent reports whether err says that a table or chain is not there, or (all but ENOENT) nf_tables itself.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EPROTONOSUPPORT)
}
