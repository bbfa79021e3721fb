package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// This file decodes a table of the legacy variant of iptables (x_tables), which legacy_linux.go has read, into the form
// in which rules of both variants are compared (kernelRule, in nftread_linux.go). The type layout, in legacy_linux.go, has
// the offsets of the fields of struct ipt_entry or ip6t_entry.

// legacyTable is a table of the legacy variant. The zero legacyTable does not exist.
type legacyTable struct {
	layout  layout
	chains  []string       // in the kernel's order, builtin ones first
	entries []legacyEntry  // the rules, without policies and ends of chains
	heads   map[int]string // first offset of each chain, where jumps lead to
}

// legacyEntry is a rule as the kernel stores it.
type legacyEntry struct {
	chain string
	raw   []byte // struct ipt_entry or ip6t_entry, its matches and its target
}

// rules decodes the rules of a chain, or with chain "" those of all chains.
func (t legacyTable) rules(chain string) (all []kernelRule) {
	for _, e := range t.entries {
		if chain == "" || e.chain == chain {
			all = append(all, t.layout.rule(e.chain, e.raw, t.heads))
		}
	}
	return all
}

// errLayout is final: the kernel may be of another architecture than this program.
var errLayout = errors.New("the kernel returned a table in an unknown layout")

const (
	targetSize  = 32 // struct xt_entry_target and xt_entry_match: size, name, revision
	errorTarget = "ERROR"
	verdictDrop = -1 // -NF_DROP - 1; a verdict of 0 or more is the offset to which a jump leads
)

// forwardChain is the chain of the packets that this node forwards.
const forwardChain = "FORWARD"

// builtinChains are the chains at the hooks 0 to 4.
var builtinChains = [...]string{"PREROUTING", "INPUT", forwardChain, "OUTPUT", "POSTROUTING"}

// legacyTable reads a table from the kernel. A table that does not exist is not asked for, because asking creates it.
func (p *iptablesPlace) legacyTable(table string) (legacyTable, error) {
	if there, err := p.tableLoaded(table); !there || err != nil {
		return legacyTable{}, err
	}
	l := layout4
	if p.command == "ip6tables" {
		l = layout6
	}
	// Another program may write the table between our two requests for its size and its entries: EAGAIN.
	var info, entries []byte
	err := rtnetlink.Repeat(func() (err error) { info, entries, err = l.read(table); return err }, unix.EAGAIN)
	if err != nil {
		return legacyTable{}, fmt.Errorf("table %s: %w", table, err)
	}
	t, err := l.parse(info, entries)
	if err != nil {
		return legacyTable{}, fmt.Errorf("table %s: %w", table, err)
	}
	return t, nil
}

// parse splits the entries of a table into chains and rules. info is struct ipt_getinfo: after the table's name, it has a
// bit for each builtin chain, and then the offsets of these chains. The entries of a table with the user chain X are:
//
//	rules of PREROUTING, its policy, rules of INPUT, its policy, …, head of X ("ERROR" target), rules of X, RETURN, "ERROR"
func (l layout) parse(info, entries []byte) (legacyTable, error) {
	t := legacyTable{layout: l, heads: map[int]string{}}
	hooks := binary.NativeEndian.Uint32(info[nameSize:])
	for i, name := range builtinChains {
		if hooks&(1<<i) != 0 {
			t.heads[int(binary.NativeEndian.Uint32(info[nameSize+4+4*i:]))] = name
		}
	}
	var all []legacyEntry
	chain := ""
	for offset := 0; offset < len(entries); {
		raw, ok := l.entry(entries[offset:])
		if !ok {
			return legacyTable{}, errLayout
		}
		if name, ok := t.heads[offset]; ok {
			chain = name
			t.chains = append(t.chains, chain)
		}
		offset += len(raw)
		if l.target(raw) == errorTarget { // the head of a user chain, whose rules begin behind it; or the end of the table
			t.heads[offset] = unix.ByteSliceToString(raw[l.targetOffset(raw)+targetSize:])
			continue
		}
		all = append(all, legacyEntry{chain, raw})
	}
	for i, e := range all {
		// The last entry of a chain is its policy, or the RETURN at its end.
		if i+1 < len(all) && all[i+1].chain == e.chain {
			t.entries = append(t.entries, e)
		}
	}
	return t, nil
}

// entry returns the first entry; false: entries are not of this layout. All offsets are checked, so that those of an entry
// need no checks later: a program for another architecture may get another layout.
func (l layout) entry(entries []byte) ([]byte, bool) {
	if len(entries) < l.size+targetSize {
		return nil, false
	}
	next, target := int(binary.NativeEndian.Uint16(entries[l.next:])), l.targetOffset(entries)
	if next > len(entries) || target < l.size || target+targetSize+4 > next {
		return nil, false
	}
	return entries[:next], true
}

// targetOffset returns where the target of an entry begins.
func (l layout) targetOffset(entry []byte) int {
	return int(binary.NativeEndian.Uint16(entry[l.next-2:]))
}

// target returns the name of an entry's target: "" is a verdict or a jump.
func (l layout) target(entry []byte) string { return extensionName(entry[l.targetOffset(entry):]) }

// extensionName returns the name of a match or target.
func extensionName(b []byte) string { return unix.ByteSliceToString(b[2 : targetSize-1]) }

// rule decodes an entry as far as kernelRule needs. heads are the names of chains by the offset of their first rule. The
// rule's text is compared with that of our own jump, so that the comment is quoted as commentSpec does. Its exprs identify
// the rule: the entry without what changes by itself, and the text, which has the name of the chain in place of the offset
// to which a jump leads.
func (l layout) rule(chain string, entry []byte, heads map[int]string) kernelRule {
	entry = bytes.Clone(entry)
	at := l.targetOffset(entry)
	jumpFlag := "-j "
	if entry[l.flags]&l.gotoFlag != 0 {
		jumpFlag = "-g "
	}
	match := bytes.Clone(entry[:l.next-6]) // the fields before nfcache: addresses, interfaces, protocol, flags
	match[l.flags] &^= l.gotoFlag          // which is no condition; if all else is zero, every packet matches
	r := kernelRule{chain: chain, conditional: len(bytes.Trim(match, "\x00")) > 0}
	for m := entry[l.size:at]; len(m) >= targetSize; {
		size := int(binary.NativeEndian.Uint16(m))
		if size < targetSize || size > len(m) {
			r.conditional = true
			break
		}
		if extensionName(m) == "comment" {
			r.text = fmt.Sprintf("-m comment --comment %q ", unix.ByteSliceToString(m[targetSize:size]))
		} else {
			r.conditional = true
		}
		m = m[size:]
	}
	verdict := entry[at+targetSize:]
	switch name := extensionName(entry[at:]); name {
	case "":
		v := int32(binary.NativeEndian.Uint32(verdict))
		r.blocks = v == verdictDrop
		if v >= 0 {
			r.jump = heads[int(v)]
			clear(verdict[:4]) // the offset changes when another rule is added
		}
	default:
		r.blocks = name == "REJECT"
	}
	if r.jump != "" { // the text of other rules is not compared
		r.text += jumpFlag + r.jump
	}
	clear(entry[l.next+2 : l.size]) // what the kernel noted when it looked for loops, and the counters
	r.exprs = []string{fmt.Sprintf("%x", entry), strings.TrimSpace(r.text)}
	return r
}
