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

	"flannel/pkg/firewall"
	"flannel/pkg/linux/rtnetlink"
)

// We write with the library google/nftables, but do not read with it: it omits expressions that it does not know, so
// that a foreign rule could look like ours. The few requests that we need are sent here.

// request sends one request to nf_tables and returns the answer. msg is an NFT_MSG constant, flags is netlink.Dump for a
// list, and names are the attributes of the request, by type.
// A dump is requested again if the kernel marks it as interrupted. The kernel does so when any rule of the network
// namespace changes during the dump, also a rule of another table. After rtnetlink.Tries, the error is EINTR, which
// isTransient.
func request(msg int, flags netlink.HeaderFlags, family nftables.TableFamily, names map[uint16]string) (answer []netlink.Message, err error) {
	err = rtnetlink.Repeat(func() (err error) {
		answer, err = requestOnce(msg, flags, family, names)
		return err
	}, unix.EINTR)
	return answer, err
}

// requestOnce opens a socket for each request. On a shared one, answers that arrive after an error would be taken for
// answers to the next request. Its error is EINTR if the kernel marks the dump as interrupted.
func requestOnce(msg int, flags netlink.HeaderFlags, family nftables.TableFamily, names map[uint16]string) ([]netlink.Message, error) {
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
	interrupted := func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }
	if err == nil && flags&netlink.Dump != 0 && slices.ContainsFunc(answer, interrupted) {
		return nil, unix.EINTR
	}
	return answer, err
}

// attr returns an attribute of a message, which begins with the four bytes of nfgenmsg; see rtnetlink.Attr.
func attr(message []byte, kinds ...uint16) []byte {
	return rtnetlink.Attr(message[min(len(message), 4):], kinds...)
}

// errIfCutOff returns rtnetlink.ErrShort if a message lacks the attribute of that kind, which every answer about an object
// that exists has near its end. (Userdata, which follows a rule's expressions, is optional.) Without this check, a message
// that is cut off looks like a table, chain or rule with other content, which is then repaired.
func errIfCutOff(message []byte, kind uint16) error {
	if attr(message, kind) == nil {
		return rtnetlink.ErrShort
	}
	return nil
}

// number parses an attribute of 32 bits, which nf_tables returns in network byte order; 0 if it is missing.
func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// hasChain reports whether the chain exists. An error is one that isTransient, such as a lack of memory or descriptors:
// asked again, the kernel may answer. With any other error, also EPERM, the chain counts as missing: so answers a kernel
// without nf_tables, without this family or without the table, and then nothing of ours is there.
func hasChain(family nftables.TableFamily, table, chain string) (bool, error) {
	answer, err := request(unix.NFT_MSG_GETCHAIN, 0, family, map[uint16]string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: chain})
	if isTransient(err) {
		return false, fmt.Errorf("look for chain %s %s: %w", table, chain, err)
	}
	return err == nil && len(answer) > 0, nil
}

// readTable returns the table of that name in the format of tableText, "" if it does not exist: one line for the table,
// one for each chain, and below it one for each of its rules. nftPlace.sync compares the text with tableText of what we
// want, for our own tables, flannel-ipv4 and flannel-ipv6. Unlike hasChain, it returns every error but those of absent
// (no such table or chain, or no nf_tables in the kernel): a table that could not be read must not be taken for one to
// write anew.
func readTable(family nftables.TableFamily, name string) (string, error) {
	answer, err := request(unix.NFT_MSG_GETTABLE, 0, family, map[uint16]string{unix.NFTA_TABLE_NAME: name})
	if absent(err) || err == nil && len(answer) == 0 {
		return "", nil
	}
	if err == nil {
		err = errIfCutOff(answer[0].Data, unix.NFTA_TABLE_USE)
	}
	if err != nil {
		return "", fmt.Errorf("read nftables table %s: %w", name, err)
	}
	table := answer[0].Data
	lines := []string{tableLine(number(attr(table, unix.NFTA_TABLE_FLAGS)), number(attr(table, unix.NFTA_TABLE_USE)))}
	// Only chains with our names are read. Any other chain shows in the number of objects of tableLine.
	for _, c := range firewall.Chains() {
		more, err := readChain(family, name, c.NFTName)
		if err != nil {
			return "", fmt.Errorf("read nftables chain %s %s: %w", name, c.NFTName, err)
		}
		lines = append(lines, more...)
	}
	return strings.Join(lines, "\n"), nil
}

// readChain returns a chain and its rules as lines of tableText, no lines if it does not exist. A missing chain also
// shows in the number of objects of tableLine.
func readChain(family nftables.TableFamily, table, name string) ([]string, error) {
	key := map[uint16]string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: name}
	answer, err := request(unix.NFT_MSG_GETCHAIN, 0, family, key)
	if absent(err) || err == nil && len(answer) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := parseChain(answer[0].Data)
	if err != nil {
		return nil, err
	}
	lines := []string{chainLine(c)}
	rules, err := readRules(family, table, name)
	for _, r := range rules {
		lines = append(lines, nftRuleLine(r.exprs, r.user))
	}
	return lines, err
}

// parseChain returns what chainLine needs of a chain. Its error is rtnetlink.ErrShort.
func parseChain(chain []byte) (*nftables.Chain, error) {
	if err := errIfCutOff(chain, unix.NFTA_CHAIN_USE); err != nil {
		return nil, err
	}
	c := &nftables.Chain{
		Name: unix.ByteSliceToString(attr(chain, unix.NFTA_CHAIN_NAME)),
		Type: nftables.ChainType(unix.ByteSliceToString(attr(chain, unix.NFTA_CHAIN_TYPE))),
	}
	if attr(chain, unix.NFTA_CHAIN_HOOK) != nil {
		policy := nftables.ChainPolicy(number(attr(chain, unix.NFTA_CHAIN_POLICY)))
		c.Policy = &policy
		c.Hooknum = nftables.ChainHookRef(nftables.ChainHook(number(attr(chain, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_HOOKNUM))))
		c.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(int32(number(attr(chain, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_PRIORITY)))))
	}
	return c, nil
}

// kernelRule is a rule as the kernel returns it, without the values of counters. parseRule makes it from a rule of
// nf_tables, where iptables-nft's rules are, too, and layout.rule from one of the legacy variant of iptables.
type kernelRule struct {
	chain string // the chain in which the rule stands
	// handle identifies the rule in its table; 0 in the legacy variant.
	handle uint64
	exprs  []string // exprText of the expressions that our rules use, "name:bytes" of any other
	user   []byte   // userdata, which holds the comment
	jump   string   // the chain that the rule jumps or goes to; "": none
	// text holds the rule as iptables' arguments, to compare a jump with ours (planJump). It is complete only if the rule
	// jumps and is not conditional.
	text string
	// conditional: the rule has a match, or an expression that we do not know, so that it may not apply to every packet.
	// It has no meaning for rules that neither jump nor block, such as those with a masq.
	// blocks: its verdict is DROP or REJECT. ACCEPT and RETURN are no reason to place our jump elsewhere: who inserted them
	// before it wanted them to come first.
	conditional, blocks bool
}

// readRules returns the rules of a chain, or with chain "" those of all chains of the table.
func readRules(family nftables.TableFamily, table, chain string) ([]kernelRule, error) {
	names := map[uint16]string{unix.NFTA_RULE_TABLE: table}
	if chain != "" {
		names[unix.NFTA_RULE_CHAIN] = chain
	}
	answer, err := request(unix.NFT_MSG_GETRULE, netlink.Dump, family, names)
	if err != nil {
		return nil, err
	}
	var rules []kernelRule
	for _, msg := range answer {
		r, err := parseRule(family, msg.Data)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// parseRule parses a message about a rule of nf_tables. Its error is rtnetlink.ErrShort.
func parseRule(family nftables.TableFamily, message []byte) (r kernelRule, err error) {
	if err := errIfCutOff(message, unix.NFTA_RULE_EXPRESSIONS); err != nil {
		return r, err
	}
	r.chain = unix.ByteSliceToString(attr(message, unix.NFTA_RULE_CHAIN))
	if handle := attr(message, unix.NFTA_RULE_HANDLE); len(handle) == 8 {
		r.handle = binary.BigEndian.Uint64(handle)
	}
	r.user = attr(message, unix.NFTA_RULE_USERDATA)
	for _, e := range rtnetlink.Attrs(attr(message, unix.NFTA_RULE_EXPRESSIONS)) {
		r.add(byte(family), unix.ByteSliceToString(rtnetlink.Attr(e, unix.NFTA_EXPR_NAME)), rtnetlink.Attr(e, unix.NFTA_EXPR_DATA))
	}
	return r, nil
}

// add decodes one expression, data of the kind name, and adds it to r: to exprs, and to what it says about the whole rule.
func (r *kernelRule) add(family byte, name string, data []byte) {
	if name == "immediate" { // the library takes for granted that it has a verdict, and a whole one
		if v, ok := parseVerdict(data); ok {
			r.exprs = append(r.exprs, exprText(v))
			r.addVerdict(v)
			return
		}
	}
	// The kinds that our own rules use. All but counter count as a condition; for a masq, that has no meaning.
	kinds := map[string]expr.Any{"meta": &expr.Meta{}, "bitwise": &expr.Bitwise{}, "cmp": &expr.Cmp{}, "payload": &expr.Payload{},
		"counter": &expr.Counter{}, "masq": &expr.Masq{}}
	e := kinds[name]
	if e == nil || expr.Unmarshal(family, data, e) != nil {
		r.exprs = append(r.exprs, fmt.Sprintf("%s:%x", name, data))
		r.classify(name, data)
		return
	}
	r.exprs = append(r.exprs, exprText(e))
	r.conditional = r.conditional || name != "counter"
}

// parseVerdict parses the data of an immediate. It returns false if the immediate loads a value, which the next expression
// uses.
func parseVerdict(data []byte) (v *expr.Verdict, ok bool) {
	verdict := rtnetlink.Attr(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
	code := rtnetlink.Attr(verdict, unix.NFTA_VERDICT_CODE)
	chain := unix.ByteSliceToString(rtnetlink.Attr(verdict, unix.NFTA_VERDICT_CHAIN))
	return &expr.Verdict{Kind: expr.VerdictKind(int32(number(code))), Chain: chain}, len(code) == 4
}

// classify sets blocks, text or conditional for an expression that our own rules do not use: planJump places our jump
// before rules that block every packet, and compares the text of each jump to our chain, which somebody else or an
// earlier release may have added with other arguments.
func (r *kernelRule) classify(kind string, data []byte) {
	// Extensions of iptables come as "match" and "target". Attribute 1 is the extension's name, 3 its private data.
	switch extension := unix.ByteSliceToString(rtnetlink.Attr(data, unix.NFTA_MATCH_NAME)); {
	case kind == "reject", kind == "target" && extension == "REJECT":
		r.blocks = true
	case kind == "match" && extension == "comment":
		r.text = fmt.Sprintf("-m comment --comment %q ", unix.ByteSliceToString(rtnetlink.Attr(data, unix.NFTA_MATCH_INFO)))
	case kind != "log": // which applies to every packet
		r.conditional = true
	}
}

// addVerdict sets jump, text or blocks by a verdict.
func (r *kernelRule) addVerdict(v *expr.Verdict) {
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
