package firewall

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"flannel/pkg/firewall"
)

// nftPlace is the place of the writer NFTables: our nftables table of one family. The table is ours alone, and its
// chains are hooks, so there are no jumps.
//
// Its chains have the same priorities as flannel's: forward filter (0), postrouting srcnat (100). With others, flannel
// could not take over the table, because the kernel refuses to change the priority of a chain. In forward, the order of
// tables does not matter: our accept does not override a drop in another table. In postrouting, the first table that
// translates a connection wins, and of chains with the same priority the kernel runs the youngest first. Therefore a
// repair flushes the rules and keeps the chains, which keeps their order relative to other tables.
type nftPlace struct {
	family nftables.TableFamily // IPv4 or IPv6
	owner  instance             // its suffix is in the table's name
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

// digest implements place, and covers the whole table.
func (p nftPlace) digest() uint64 {
	have, err := readTable(p.family, p.table().Name)
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(have))
	return h.Sum64()
}

// list implements place: the table stands for all that is in it.
func (p nftPlace) list(context.Context) ([]string, error) {
	have, err := readTable(p.family, p.table().Name)
	if err != nil || have == "" {
		return nil, err
	}
	return []string{p.String()}, nil
}

// sync implements place. It compares the whole table as text and, if anything differs, rewrites it in one transaction: a
// packet sees either the old or the new rules. Connections that are already masqueraded stay so, by conntrack.
func (p nftPlace) sync(_ context.Context, want []firewall.Chain) (int, error) {
	have, err := readTable(p.family, p.table().Name)
	if err != nil {
		return 0, err
	}
	wanted := p.wanted(want)
	if have == tableText(wanted) { // also if both are "": nothing is wanted, and there is no table
		return 0, nil
	}
	conn, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	table := p.table()
	// Adding the table first makes the next step succeed whether or not it exists.
	conn.AddTable(table)
	if len(want) > 0 && withoutRules(have) == withoutRules(tableText(wanted)) { // the chains are right, and stay
		conn.FlushTable(table) // deletes the rules
	} else {
		conn.DelTable(table)
		if len(want) > 0 {
			conn.AddTable(table)
		}
	}
	for _, c := range wanted {
		c.Table = table
		conn.AddChain(&c.Chain) // registers its hook, unless the chain exists
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: &c.Chain, Exprs: r.exprs, UserData: commentData(r.comment)})
		}
	}
	if err := conn.Flush(); isTransient(err) {
		return 0, fmt.Errorf("write table: %w", err)
	} else if err != nil {
		return 0, fmt.Errorf("write table: %w: %w%s", errRefused, err, nftAdvice(err)) // syncPlace tries simpler rules
	}
	return max(len(want), 1), nil // 1: nothing is wanted, and the table was removed
}

// nftChain is a Chain as translated for the kernel.
type nftChain struct {
	nftables.Chain
	rules []nftRule
}

// nftRule is a rule of an nftChain.
type nftRule struct {
	exprs   []expr.Any // what the kernel executes, in order; each works on registers or on the packet
	comment string     // for people, see commentData
}

// wanted translates chains for the kernel. The priorities are those of the iptables tables of the same name, so that a
// packet meets the rules of either writer at the same point.
func (p nftPlace) wanted(want []firewall.Chain) []nftChain {
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
			n.rules = append(n.rules, nftRule{exprs(r), c.Comment})
		}
		all = append(all, n)
	}
	return all
}

// exprs translates the rule to expressions of the kernel. They have the form that nft generates, so that "nft list"
// prints the rule as a person would write it.
func exprs(r firewall.Rule) []expr.Any {
	var e []expr.Any
	if r.Mark != 0 { // load the mark, mask it, and compare
		mark := binary.NativeEndian.AppendUint32(nil, r.Mark)
		e = append(e, &expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mark, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark})
	}
	e = append(e, match(r.Src, r.NotSrc, 12, 8)...)
	e = append(e, match(r.Dst, r.NotDst, 16, 24)...)
	e = append(e, &expr.Counter{})
	switch r.Verdict {
	case firewall.Return:
		return append(e, &expr.Verdict{Kind: expr.VerdictReturn})
	case firewall.Accept:
		return append(e, &expr.Verdict{Kind: expr.VerdictAccept})
	default:
		return append(e, &expr.Masq{FullyRandom: r.RandomFully})
	}
}

// match returns expressions that compare an address in the IP header with p; none if p is the zero Prefix (any address).
// not inverts the result. The offsets are those of the address, in bytes, in an IPv4 and in an IPv6 header.
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
	// Like nft, compare a prefix of whole bytes without a mask.
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset}
	if p.Bits()%8 == 0 && size > 0 {
		load.Len = uint32(size)
		return []expr.Any{load, &expr.Cmp{Op: op, Register: 1, Data: addr[:size]}}
	}
	load.Len = uint32(len(addr))
	mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
	return []expr.Any{load,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: load.Len, Mask: mask, Xor: make([]byte, len(addr))},
		&expr.Cmp{Op: op, Register: 1, Data: addr}}
}

// commentData returns the userdata of a rule, which the kernel only stores, and in which nft finds a comment.
func commentData(comment string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, comment)
}

// tableText returns all that matters of a table as text, "" for no table. Two tables are equal if their texts are. The
// chains must be in the order of firewall.Chains, in which readTable reads them.
func tableText(chains []nftChain) string {
	if len(chains) == 0 {
		return ""
	}
	lines := []string{tableLine(0, uint32(len(chains)))}
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

// withoutRules removes the lines of rules from a table's text.
func withoutRules(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.HasPrefix(line, " ") })
	return strings.Join(lines, "\n")
}

// tableLine describes the table itself. use is the kernel's number of chains, sets and other objects in it, so a
// foreign one shows as a difference.
func tableLine(flags, use uint32) string { return fmt.Sprintf("table flags %d holds %d", flags, use) }

// chainLine describes a chain: its name and, if it is a hook, type, hook number, priority and policy.
func chainLine(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Priority == nil || c.Policy == nil {
		return "chain " + c.Name
	}
	return fmt.Sprintf("chain %s %s %d %d %d", c.Name, c.Type, *c.Hooknum, *c.Priority, *c.Policy)
}

// nftRuleLine describes a rule by the exprText of its expressions and its userdata. The blank at the start of the line
// tells it from a chain's (withoutRules).
func nftRuleLine(exprs []string, user []byte) string {
	return " " + strings.Join(exprs, " ") + " " + hex.EncodeToString(user)
}

// exprText returns an expression as text, without the values of counters.
func exprText(e expr.Any) string {
	if _, ok := e.(*expr.Counter); ok {
		return "counter"
	}
	return fmt.Sprintf("%T%+v", e, e)
}

// absent reports whether err means that a table or chain does not exist (ENOENT), or that the kernel has no nf_tables, or
// not for this family (the others).
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EPROTONOSUPPORT)
}
