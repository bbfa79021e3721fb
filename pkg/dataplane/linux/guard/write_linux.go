package guard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane/driver"
	"flannel/pkg/reconcile"
)

// set returns one of the sets, which the kernel knows by its name.
func (g *Guard) set(name string) *nftables.Set {
	concat := nftables.MustConcatSetType
	types := map[string]nftables.SetDatatype{peers4: nftables.TypeIPAddr, peers6: nftables.TypeIP6Addr, pods: nftables.TypeIFName,
		owners4: concat(nftables.TypeIPAddr, nftables.TypeIPAddr, nftables.TypeInetService),
		owners6: concat(nftables.TypeIP6Addr, nftables.TypeIP6Addr, nftables.TypeInetService)}
	set := &nftables.Set{Table: g.table, Name: name, KeyType: types[name], Concatenation: name == owners4 || name == owners6}
	if name == pods {
		set.KeyByteOrder = binaryutil.NativeEndian // with which nft prints names
	}
	return set
}

// exists reports whether there is a table of that name.
func (g *Guard) exists() (bool, error) {
	_, err := g.conn.ListTableOfFamily(g.table.Name, g.table.Family)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read table %s: %w", g.table.Name, err)
	}
	return true, nil
}

// check compares the rules in the kernel with those that were written last, by their
// handles, which the kernel never uses twice, and makes the sets be listed. If anything
// differs, or after a start, config is nil afterwards.
func (g *Guard) check(o driver.Options) error {
	g.peers.Relist()
	g.pods.Relist()
	handles, dropping, err := g.handles()
	if err != nil {
		return err
	}
	if g.config == nil {
		g.trial.dropping = g.trial.dropping || dropping // the rules of an earlier run
	} else if !slices.Equal(handles, g.rules) {
		g.config = nil
		g.log.Info("repairing the guard's rules, somebody else has changed them", "table", g.table.Name)
		o.Repairs.Count("guard-rules", 1)
	}
	return nil
}

// handles returns the handles of all rules of the table in their order, and whether
// they drop packets; none if there is no table.
func (g *Guard) handles() (handles []uint64, dropping bool, err error) {
	for _, name := range chainNames {
		rules, err := g.conn.GetRules(g.table, &nftables.Chain{Name: name, Table: g.table})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, false, fmt.Errorf("read chain %s of table %s: %w", name, g.table.Name, err)
		}
		for _, r := range rules {
			handles, dropping = append(handles, r.Handle), dropping || drops(r.Exprs)
		}
	}
	return handles, dropping, nil
}

// prepare makes the table with its counters and sets, which keep their content if they
// exist. A set of another type under our name is an error of the kernel, whereupon the
// table is made anew.
func (g *Guard) prepare() error {
	err := g.prepareOnce()
	if err == nil {
		return nil
	}
	if err := g.remove(); err != nil {
		return err
	}
	return g.prepareOnce()
}

func (g *Guard) prepareOnce() error {
	g.conn.AddTable(g.table)
	for _, name := range ruleNames {
		g.conn.AddObj(&nftables.CounterObj{Table: g.table, Name: name})
	}
	for _, name := range []string{peers4, peers6, owners4, owners6, pods} {
		if err := g.conn.AddSet(g.set(name), nil); err != nil {
			return err
		}
	}
	return g.flush("make the sets")
}

// write replaces all rules in one transaction.
func (g *Guard) write(c Config) error {
	accept := nftables.ChainPolicyAccept
	all := chains(c, groupOf(g.table.Name))
	for _, chain := range all {
		kernel := &nftables.Chain{Table: g.table, Name: chain.name}
		if chain.name == prerouting {
			kernel.Type, kernel.Hooknum, kernel.Priority, kernel.Policy = nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, &accept
		}
		g.conn.AddChain(kernel)
		g.conn.FlushChain(kernel)
	}
	for _, chain := range all {
		for _, r := range chain.rules {
			g.conn.AddRule(&nftables.Rule{Table: g.table, Chain: &nftables.Chain{Table: g.table, Name: chain.name}, Exprs: r.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment)})
		}
	}
	if err := g.flush("write the rules"); err != nil {
		return err
	}
	handles, _, err := g.handles()
	if err != nil {
		return err
	}
	g.config, g.rules, g.trial.dropping = &c, handles, c.Enforce
	return nil
}

// remove deletes the table.
func (g *Guard) remove() error {
	if g.config == nil && !g.stale.Load() {
		return nil
	}
	g.config, g.trial.dropping = nil, false
	exists, err := g.exists()
	if err == nil && exists {
		g.conn.DelTable(g.table)
		err = g.flush("delete the table")
	}
	if err != nil {
		return err
	}
	g.peers.Relist()
	g.pods.Relist()
	g.stale.Store(false)
	return nil
}

func (g *Guard) flush(what string) error {
	if err := g.conn.Flush(); err != nil {
		return fmt.Errorf("%s of table %s: %w", what, g.table.Name, err)
	}
	return nil
}

// element is one of a set as the kernel compares it: an address, an owner, or the name of
// an interface.
type element string

func (e element) String() string {
	if sender, network, ok := parseOwner(e); ok {
		return sender.String() + " for " + network.String()
	}
	if a, ok := netip.AddrFromSlice([]byte(e)); ok && len(e) != unix.IFNAMSIZ {
		return a.String()
	}
	return strings.TrimRight(string(e), "\x00")
}

// elements is the store of one set or of several: keys belong to the one whose elements
// have their length.
type elements struct {
	g    *Guard
	name string
	sets []*nftables.Set
}

// Name implements reconcile.Store.
func (e elements) Name() string { return e.name }

// List implements reconcile.Store.
func (e elements) List(context.Context) (map[element]struct{}, error) {
	all := map[element]struct{}{}
	for _, set := range e.sets {
		list, err := e.g.conn.GetSetElements(set)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("set %s: %w", set.Name, err)
		}
		for _, has := range list {
			all[element(has.Key)] = struct{}{}
			if _, network, ok := parseOwner(element(has.Key)); ok {
				e.g.masks[of(network)] = true
			}
		}
	}
	return all, nil
}

// Set implements reconcile.Store.
func (e elements) Set(_ context.Context, entries []reconcile.Entry[element, struct{}]) []error {
	return e.change(entries, e.g.conn.SetAddElements)
}

// Delete implements reconcile.Store. Elements that somebody else has deleted meanwhile
// make the kernel refuse them all; the next pass lists the set.
func (e elements) Delete(_ context.Context, entries []reconcile.Entry[element, struct{}]) []error {
	return e.change(entries, e.g.conn.SetDeleteElements)
}

// atOnce is the number of elements in one transaction, whose message then has less than
// the 64 KiB that the length of an attribute can be.
const atOnce = 1000

// change calls do for all entries, in messages of limited size.
func (e elements) change(entries []reconcile.Entry[element, struct{}], do func(*nftables.Set, []nftables.SetElement) error) []error {
	var errs []error
	for chunk := range slices.Chunk(entries, atOnce) {
		err := e.changeOnce(chunk, do)
		for range chunk {
			errs = append(errs, err)
		}
	}
	return errs
}

func (e elements) changeOnce(entries []reconcile.Entry[element, struct{}], do func(*nftables.Set, []nftables.SetElement) error) error {
	for _, set := range e.sets {
		var list []nftables.SetElement
		for _, entry := range entries {
			if len(e.sets) == 1 || len(entry.Key) == int(set.KeyType.Bytes) {
				list = append(list, nftables.SetElement{Key: []byte(entry.Key)})
			}
		}
		if len(list) > 0 {
			if err := do(set, list); err != nil {
				return err
			}
		}
	}
	return e.g.flush("change the sets")
}
