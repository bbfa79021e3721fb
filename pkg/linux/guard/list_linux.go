package guard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// This file reads the table. The methods are called by Apply, Prune and Remove.

// noTable are the errors of asking for a table that does not exist, or of a kernel that
// has no nf_tables.
var noTable = []error{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT}

func isNoTable(err error) bool {
	return slices.ContainsFunc(noTable, func(none error) bool { return errors.Is(err, none) })
}

// kernelTable returns the table of that name as the kernel has it; nil: there is none.
func (g *Guard) kernelTable() (*nftables.Table, error) {
	table, err := g.conn.ListTableOfFamily(g.table.Name, g.table.Family)
	if isNoTable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", g.table.Name, err)
	}
	return table, nil
}

// inForce reports whether packets meet the rules, and pass if none drops them: the table is
// not dormant, and no chain has another policy.
func (g *Guard) inForce() (bool, error) {
	table, err := g.kernelTable()
	if table == nil {
		return false, err
	}
	chains, err := g.kernelChains()
	for _, attrs := range chains {
		policy := rtnetlink.Attr(attrs, unix.NFTA_CHAIN_POLICY) // only base chains have one
		if policy != nil && nftables.ChainPolicy(number(policy)) != nftables.ChainPolicyAccept {
			return false, err
		}
	}
	return table.Flags == 0, err // 0: also not dormant
}

// listRules returns all rules of the table, by chain and in the order of chainNames, and
// whether they drop packets; none if there is no table.
func (g *Guard) listRules() (rules []*nftables.Rule, dropping bool, err error) {
	for _, name := range chainNames() {
		chain, err := g.conn.GetRules(g.table, &nftables.Chain{Name: name, Table: g.table})
		if err != nil { // a chain that does not exist has no rules, and is no error
			return nil, false, fmt.Errorf("read chain %s of table %s: %w", name, g.table.Name, err)
		}
		for _, r := range chain {
			rules, dropping = append(rules, r), dropping || drops(r.Exprs)
		}
	}
	return rules, dropping, nil
}

// masksOf returns those of the sets of networks that the rules look at; nil if there are no
// rules.
func masksOf(rules []*nftables.Rule) (all []mask) {
	if len(rules) > 0 {
		all = []mask{}
	}
	for _, set := range setsOf(rules) {
		if m, isNetworks := maskOf(set); isNetworks {
			all = append(all, m)
		}
	}
	return all
}

func handlesOf(rules []*nftables.Rule) (handles []uint64) {
	for _, r := range rules {
		handles = append(handles, r.Handle)
	}
	return handles
}

// kernelChains returns the attributes of the chains of the table that the kernel has, by their names; none if there is no table.
func (g *Guard) kernelChains() (map[string][]byte, error) {
	return g.list("chains", unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_NAME)
}

// kernelSets returns the same of the sets.
func (g *Guard) kernelSets() (map[string][]byte, error) {
	return g.list("sets", unix.NFT_MSG_GETSET, unix.NFTA_SET_NAME)
}

// list returns the attributes of what the table has of a kind, by the name, which is one of them.
func (g *Guard) list(what string, kind, name uint16) (map[string][]byte, error) {
	all := map[string][]byte{}
	err := g.dump(kind, "", func() { clear(all) }, func(attrs []byte) {
		if unix.ByteSliceToString(rtnetlink.Attr(attrs, unix.NFTA_SET_TABLE)) == g.table.Name { // also NFTA_CHAIN_TABLE
			all[unix.ByteSliceToString(rtnetlink.Attr(attrs, name))] = bytes.Clone(attrs)
		}
	})
	if err != nil && !isNoTable(err) {
		return nil, fmt.Errorf("list the %s of table %s: %w", what, g.table.Name, err)
	}
	return all, nil
}

// number parses an attribute of 32 bits in network byte order; it returns 0 for other lengths.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// listElements lists the elements of a set. each gets the key and the attributes of each element, and must copy what it
// keeps. reset is called before the list and before each repetition of it. If the kernel resizes the hash table of the
// set meanwhile, as it does after others were added or deleted, the list may lack elements or have some twice.
func (g *Guard) listElements(set string, reset func(), each func(key, attrs []byte)) error {
	return g.dump(unix.NFT_MSG_GETSETELEM, set, reset, func(attrs []byte) {
		for _, e := range rtnetlink.Attrs(rtnetlink.Attr(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			each(rtnetlink.Attr(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE), e)
		}
	})
}

// dump lists the sets of the table, the chains of all tables, or the elements of a set. kind is NFT_MSG_GETSET or
// NFT_MSG_GETCHAIN, with set "", or NFT_MSG_GETSETELEM. each gets the attributes of each message of the answer, and must
// copy what it keeps. reset is called before the list and before each repetition of it, and forgets what each has got.
//
// The kernel reads a list in parts, and finds the beginning of the next one by counting. So a change in a table of somebody
// else can make the list of chains lack some of the guard's. The kernel says so, of lists of chains and of sets, and Conn
// repeats the list. If there is such a change each time, the last list is used, and the next check reads again.
func (g *Guard) dump(kind uint16, set string, reset func(), each func(attrs []byte)) error {
	header := []byte{byte(g.table.Family), unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg; answers begin with one, too
	request := rtnetlink.Message(header).
		Attr(unix.NFTA_SET_ELEM_LIST_TABLE, append([]byte(g.table.Name), 0)) // the same number as NFTA_SET_TABLE
	if set != "" {
		request = request.Attr(unix.NFTA_SET_ELEM_LIST_SET, append([]byte(set), 0))
	}
	err := g.dumps.Dump(unix.NFNL_SUBSYS_NFTABLES<<8|kind, request, reset, func(body []byte) error {
		each(body[min(len(body), len(header)):])
		return nil
	})
	if errors.Is(err, unix.EINTR) {
		g.interrupted = true
		g.stale.Store(true)
		return nil
	}
	return err
}
