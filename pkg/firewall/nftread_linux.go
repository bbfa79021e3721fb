//go:build linux

package firewall

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The google/nftables library writes for us, but does not read faithfully enough to compare: it leaves out expressions
// that it does not know. So the few questions below are asked directly.

// dumpTries bounds how often a list is requested again that the kernel marks as interrupted. It does so whenever any rule
// of the network namespace changes meanwhile, also one of another table.
const dumpTries = 10

// ask sends one request to nf_tables; names are its first attributes, by type.
func ask(msg int, flags netlink.HeaderFlags, family nftables.TableFamily, names map[uint16]string) (answer []netlink.Message, err error) {
	for range dumpTries {
		if answer, err = askOnce(msg, flags, family, names); err != unix.EINTR {
			break
		}
	}
	return answer, err
}

// askOnce opens a socket for each request: they are few, and after an error on a shared one the answers that are still
// under way would be taken for those of the next request. Its error is EINTR if the rules changed while they were listed.
func askOnce(msg int, flags netlink.HeaderFlags, family nftables.TableFamily, names map[uint16]string) ([]netlink.Message, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var attrs []netlink.Attribute
	for t, name := range names {
		attrs = append(attrs, netlink.Attribute{Type: t, Data: append([]byte(name), 0)})
	}
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	answer, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | msg), Flags: netlink.Request | flags},
		Data:   append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, data...),
	})
	torn := func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }
	if err == nil && flags&netlink.Dump != 0 && slices.ContainsFunc(answer, torn) {
		return nil, unix.EINTR
	}
	return answer, err
}

// each skips the four bytes of nfgenmsg and calls f with every attribute of a message.
func each(data []byte, f func(ad *netlink.AttributeDecoder)) error {
	if len(data) < 4 {
		return fmt.Errorf("nf_tables message of %d bytes", len(data))
	}
	ad, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// hasChain reports whether the chain is there; a kernel without nf_tables has none. Its error means that it could not look.
func hasChain(family nftables.TableFamily, table, chain string) (bool, error) {
	answer, err := ask(unix.NFT_MSG_GETCHAIN, 0, family, map[uint16]string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: chain})
	if shortage(err) {
		return false, fmt.Errorf("look for chain %s %s: %w", table, chain, err)
	}
	return err == nil && len(answer) > 0, nil
}

// readTable is the table as tableText has it.
func readTable(family nftables.TableFamily, name string) (string, error) {
	answer, err := ask(unix.NFT_MSG_GETTABLE, 0, family, map[uint16]string{unix.NFTA_TABLE_NAME: name})
	if absent(err) || err == nil && len(answer) == 0 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read nftables table %s: %w", name, err)
	}
	var flags, use uint32
	if err := each(answer[0].Data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_TABLE_FLAGS:
			flags = ad.Uint32()
		case unix.NFTA_TABLE_USE:
			use = ad.Uint32()
		}
	}); err != nil {
		return "", fmt.Errorf("read nftables table %s: %w", name, err)
	}
	lines := []string{tableLine(flags, use)}
	// Only the chains that we know are read; any other is visible in the table's count.
	names := []string{}
	for _, c := range chains() {
		names = append(names, c.NFTName)
	}
	slices.Sort(names)
	for _, chain := range names {
		more, err := readChain(family, name, chain)
		if err != nil {
			return "", fmt.Errorf("read nftables chain %s %s: %w", name, chain, err)
		}
		lines = append(lines, more...)
	}
	return strings.Join(lines, "\n"), nil
}

// readChain is a chain and its rules as tableText has them, nothing if it is not there: the table's count tells that it
// is missing.
func readChain(family nftables.TableFamily, table, name string) ([]string, error) {
	key := map[uint16]string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: name}
	answer, err := ask(unix.NFT_MSG_GETCHAIN, 0, family, key)
	if absent(err) || err == nil && len(answer) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c := nftables.Chain{Name: name}
	if err := each(answer[0].Data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TYPE:
			c.Type = nftables.ChainType(ad.String())
		case unix.NFTA_CHAIN_POLICY:
			policy := nftables.ChainPolicy(ad.Uint32())
			c.Policy = &policy
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(func(hook *netlink.AttributeDecoder) error { return readHook(hook, &c) })
		}
	}); err != nil {
		return nil, err
	}
	lines := []string{chainLine(&c)}
	rules, err := readRules(family, table, name)
	for _, r := range rules {
		lines = append(lines, nftRuleLine(r.exprs, r.user))
	}
	return lines, err
}

func readHook(hook *netlink.AttributeDecoder, c *nftables.Chain) error {
	for hook.Next() {
		switch hook.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			c.Hooknum = nftables.ChainHookRef(nftables.ChainHook(hook.Uint32()))
		case unix.NFTA_HOOK_PRIORITY:
			c.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(int32(hook.Uint32())))
		}
	}
	return nil
}

// readRule is a rule as it is in the kernel, without counters.
type readRule struct {
	exprs []string // exprText of those that we use, the name and bytes of any other
	user  []byte
	jump  string // the chain that it leads to, if any
	text  string // iptables' arguments of a rule that leads to a chain and is not narrow
	// narrow: it has a condition, or an expression that we do not know. blocks: it ends with DROP or REJECT.
	narrow, blocks bool
}

func readRules(family nftables.TableFamily, table, chain string) ([]readRule, error) {
	answer, err := ask(unix.NFT_MSG_GETRULE, netlink.Dump, family,
		map[uint16]string{unix.NFTA_RULE_TABLE: table, unix.NFTA_RULE_CHAIN: chain})
	if err != nil {
		return nil, err
	}
	var rules []readRule
	for _, msg := range answer {
		r, err := parseRule(family, msg.Data)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseRule(family nftables.TableFamily, data []byte) (r readRule, err error) {
	err = each(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(e *netlink.AttributeDecoder) error { return r.read(byte(family), e) })
				}
				return nil
			})
		case unix.NFTA_RULE_USERDATA:
			r.user = ad.Bytes()
		}
	})
	return r, err
}

// read adds one expression.
func (r *readRule) read(family byte, ad *netlink.AttributeDecoder) error {
	var name string
	var data []byte
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data = ad.Bytes()
		}
	}
	// Any other immediate (one that loads a value) reads as a verdict that none of our rules has.
	kinds := map[string]expr.Any{"meta": &expr.Meta{}, "bitwise": &expr.Bitwise{}, "cmp": &expr.Cmp{}, "payload": &expr.Payload{},
		"counter": &expr.Counter{}, "immediate": &expr.Verdict{}, "masq": &expr.Masq{}}
	e := kinds[name]
	if e == nil || expr.Unmarshal(family, data, e) != nil {
		r.exprs = append(r.exprs, fmt.Sprintf("%s:%x", name, data))
		r.judge(name, data)
		return nil
	}
	r.exprs = append(r.exprs, exprText(e))
	if v, ok := e.(*expr.Verdict); ok {
		r.verdict(v)
	} else {
		r.narrow = r.narrow || name != "counter"
	}
	return nil
}

// judge notes what an expression that we do not use means for the place of our jump.
func (r *readRule) judge(kind string, data []byte) {
	// The first attribute of an extension of iptables is its name, the third what only it understands.
	switch extension := name(data, unix.NFTA_MATCH_NAME); {
	case kind == "reject", kind == "target" && extension == "REJECT":
		r.blocks = true
	case kind == "match" && extension == "comment":
		comment, _, _ := strings.Cut(name(data, unix.NFTA_MATCH_INFO), "\x00")
		r.text = fmt.Sprintf("-m comment --comment %q ", comment)
	case kind != "log":
		r.narrow = true
	}
}

func (r *readRule) verdict(v *expr.Verdict) {
	switch v.Kind {
	case expr.VerdictJump:
		r.jump = v.Chain
		r.text += "-j " + v.Chain
	case expr.VerdictGoto:
		r.jump = v.Chain
		r.text += "-g " + v.Chain
	case expr.VerdictDrop:
		r.blocks = true
	}
}
