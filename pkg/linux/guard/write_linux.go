package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// This file writes the guard's table (guard_linux.go says what it drops) and compares it
// with what was written. The methods are called by Apply, Prune and Remove. Rules drop
// packets only after a trial (trial_linux.go), in which they only count them.

// repairedRules is a label of the metric of repairs.
const repairedRules = "guard-rules"

// check compares the rules in the kernel with those that were written last, by their
// handles, which the kernel never uses twice, and has the next Add of the sets' tables list them.
// If anything differs, or the rules are not in force, or after a start, config is nil afterwards, so
// that fill writes all rules. fill also makes sets that are gone. foreign are the foreign sets afterwards. Apply calls
// check if the guard is stale: after a start, after Relist, after a change whose result is not known, and when somebody
// else has changed the table. If nobody has changed anything in nf_tables since the last check, this guard included, a
// check by Relist alone reads nothing.
func (g *Guard) check(o dataplane.Options) error {
	generation := rtnetlink.TablesGeneration() // before the lists: a change in between makes the next check read again
	g.interrupted = false
	if g.config != nil && generation != 0 && generation == g.compared {
		return nil
	}
	g.compared = 0
	g.tables().Relist()
	rules, dropping, err := g.listRules()
	if err != nil {
		return err
	}
	inForce, err := g.inForce()
	if err != nil {
		return err
	}
	hasCounters, err := g.hasCounters()
	if err != nil {
		return err
	}
	sets, err := g.kernelSets()
	if err != nil {
		return err
	}
	// Rules that are not in force count, too: prepare puts them in force (AddTable clears dormant) before write replaces them.
	g.dropping, g.inRules = dropping, masksOf(rules)
	for _, m := range g.inRules {
		g.masks[m] += 0 // makes an entry, so that the set stays until Prune. The number of paths stays, or is 0
	}
	// Sets that no rule looks at may be gone. makeSets makes only those: each transaction changes the generation, so that
	// the next check would read all again.
	made := len(g.made)
	maps.DeleteFunc(g.made, func(set string, _ bool) bool { return sets[set] == nil })
	isWritten := inForce && hasCounters && slices.Equal(handlesOf(rules), g.rules) && len(g.unneededSets(sets)) == 0
	if g.config == nil {
		g.trial.passed = g.trial.passed || dropping // rules of an earlier run that drop had passed their trial
	}
	isChanged := !inForce || !hasCounters || !isWritten && !g.incomplete || len(g.made) < made // by somebody else
	if g.config != nil && isChanged {
		if logs := o.Repairs.Count(repairedRules, 1); logs {
			g.log.Info("repairing the guard's table, somebody else has changed it", "table", g.table.Name)
		}
	}
	if !isWritten {
		g.config = nil
	}
	g.foreign = g.foreignSets(sets)
	g.compared = generation
	return nil
}

// replaceForeign deletes a table in which check has found foreign sets, once in a run for each attribute in which they
// differ: if the guard's new sets differ, too, a later kernel lists them in another form. Such sets are kept.
func (g *Guard) replaceForeign(o dataplane.Options) error {
	foreign := g.foreign
	least := 2
	for attribute := range foreign {
		least = min(least, g.replaced[attribute])
	}
	switch least {
	case 0:
		if _, err := g.deleteTable(); err != nil {
			return err
		}
		g.log.Info("replacing the guard's table, it has sets that do not behave like the guard's", "table", g.table.Name, "sets", foreign)
		o.Repairs.Count(repairedRules, 1)
		g.changed() // check the new sets soon
	case 1:
		g.log.Warn("sets in the guard's table still do not behave like the guard's, keeping them", "table", g.table.Name, "sets", foreign)
	}
	g.foreign = nil
	for attribute := range foreign {
		g.replaced[attribute] = least + 1
	}
	return nil
}

// fill makes the table have the sets with their elements, and the rules of c. Its sets
// keep their content if they exist.
func (g *Guard) fill(ctx context.Context, o dataplane.Options, c Config) error {
	if g.config == nil {
		if err := g.prepare(); err != nil {
			return err
		}
	}
	if err := g.makeSets(); err != nil {
		return err
	}
	// A mask that no path needs any more stays until Prune has deleted the elements of
	// its set.
	c.masks = g.sortedMasks()
	before, after := g.tables(), dataplane.Tables(nil) // whose elements are added before and after the rules
	if g.judgesNewSenders(c) {
		after = g.peers.senders.tables() // the last ones of tables
		before = before[:len(before)-len(after)]
	}
	if err := before.Add(ctx, o); err != nil {
		return err
	}
	if g.config == nil || !reflect.DeepEqual(*g.config, c) {
		if err := g.write(c); err != nil {
			return err
		}
	}
	return after.Add(ctx, o)
}

// judgesNewSenders reports whether the rules in the kernel would take packets of new senders
// for forged ones, because they do not look at a set that has networks of these senders: c has a
// mask that is not in inRules. All new senders are then added after the rules of c. Otherwise they
// are added first, so that no rules judge their packets without them. Before rules that begin to
// drop, they are also added first: a packet is better counted wrongly by the former rules than
// dropped by the new ones.
func (g *Guard) judgesNewSenders(c Config) bool {
	isNew := func(m mask) bool { return !slices.Contains(g.inRules, m) }
	return g.inRules != nil && slices.ContainsFunc(c.masks, isNew) && (g.dropping || !c.Enforce)
}

// isConflict reports whether the kernel refuses a change because there is something of
// another kind under one of our names, such as a set of another type or a chain of another hook.
// err is from fill. A kernel without nf_tables returns EOPNOTSUPP, too; deleteTable then
// finds no table, and the second fill fails in the same way.
func isConflict(err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EOPNOTSUPP)
}

// counterNames are those of the counters.
func counterNames() []string {
	names := []string{claimed, joinedBy(outsider)}
	for _, rule := range ruleNames {
		names = append(names, countedBy(rule), droppedBy(rule))
	}
	return names
}

func (g *Guard) counter(name string) *nftables.CounterObj {
	return &nftables.CounterObj{Table: g.table, Name: name}
}

// prepare makes the table with its counters.
func (g *Guard) prepare() error {
	packets, err := g.counts.read(g.table)
	if err != nil {
		return fmt.Errorf("read the counters of table %s: %w", g.table.Name, err)
	}
	// What exists already stays as it is: the library does not ask the kernel to refuse it.
	g.absent = false
	g.conn.AddTable(g.table)
	for _, name := range counterNames() {
		if _, exists := packets[name]; !exists && len(packets) > 0 {
			g.recount = true // an earlier version made the table, without this counter, or somebody has deleted it
		}
		g.conn.AddObj(g.counter(name))
	}
	return g.flush("make the counters")
}

// write replaces all rules in one transaction. Chains and sets that these rules do not
// need, of an earlier version or of somebody else, are deleted in it. If counters were missing,
// all of them start anew, so that their numbers fit each other.
func (g *Guard) write(c Config) error {
	all := chains(c, groupOf(g.table.Name)) // the NFLOG group, which the sampler reads
	gone, err := g.unneeded(all)
	if err != nil {
		return err
	}
	sets, err := g.kernelSets()
	if err != nil {
		g.log.Debug("cannot list the guard's sets, those of others stay", "table", g.table.Name, "error", err)
	}
	var counted map[string]uint64
	if g.recount { // read before changes are queued: after an error, the next flush would send what is queued
		if counted, err = g.counts.read(g.table); err != nil {
			return fmt.Errorf("read the counters of table %s: %w", g.table.Name, err)
		}
	}
	// The kernel deletes nothing to which something refers:
	//
	//	deleted in this order    refers to
	//	the rules of all chains  chains, sets, counters
	//	sets and maps            chains and counters, by elements of maps
	//	counters                 nothing
	//	chains                   nothing, without their rules
	for _, chain := range gone {
		g.conn.FlushChain(chain)
	}
	for _, chain := range all {
		kernel := &nftables.Chain{Table: g.table, Name: chain.name}
		if h, isBase := hooks[chain.name]; isBase {
			policy := nftables.ChainPolicyAccept
			kernel.Type, kernel.Hooknum, kernel.Priority, kernel.Policy = nftables.ChainTypeFilter, h.number, h.priority, &policy
		}
		g.conn.AddChain(kernel)
		g.conn.FlushChain(kernel)
	}
	for _, name := range g.unneededSets(sets) {
		g.conn.DelSet(g.set(name))
	}
	if g.recount {
		g.renewCounters(counted)
	}
	for _, chain := range gone {
		g.conn.DelChain(chain)
	}
	for _, chain := range all {
		for _, r := range chain.rules {
			g.conn.AddRule(&nftables.Rule{Table: g.table, Chain: &nftables.Chain{Table: g.table, Name: chain.name}, Exprs: r.exprs, UserData: r.userData()})
		}
	}
	if err := g.flush("write the rules"); err != nil {
		return err
	}
	g.trial.unread = g.trial.unread || g.recount
	// mayEnforce lets c.Enforce be true only after the trial. Rules that only count begin
	// a new trial. config stays nil if the handles cannot be listed.
	g.config, g.recount, g.dropping, g.trial.passed = nil, false, c.Enforce, c.Enforce // as the kernel has them now
	g.inRules = append([]mask{}, c.masks...)
	written, _, err := g.listRules()
	if err != nil {
		return err
	}
	g.config, g.rules, g.incomplete = &c, handlesOf(written), g.interrupted
	if g.incomplete || !slices.EqualFunc(written, rulesOf(all), func(w *nftables.Rule, r rule) bool { return bytes.Equal(w.UserData, r.userData()) }) {
		// Chains that are not needed may be left, or somebody else changed the rules before they were listed. The guard is
		// stale, or the notification of that change makes it so, and check finds handles that differ.
		g.rules = []uint64{noHandle}
	}
	g.interrupted = false
	return nil
}

// noHandle differs from the handle of every rule.
const noHandle = 0

// rulesOf returns the rules of all chains in the order of listRules.
func rulesOf(all []chain) (rules []rule) {
	for _, name := range chainNames() {
		for _, c := range all {
			if c.name == name {
				rules = append(rules, c.rules...)
			}
		}
	}
	return rules
}

// userData is what the kernel keeps of a rule for its author: the comment.
func (r rule) userData() []byte { return userdata.AppendString(nil, userdata.TypeComment, r.comment) }

// renewCounters queues changes that replace the counters (counted has their names), and add those
// that are missing, while no rule counts.
func (g *Guard) renewCounters(counted map[string]uint64) {
	for name := range counted {
		g.conn.DeleteObject(g.counter(name))
	}
	for _, name := range counterNames() {
		g.conn.AddObj(g.counter(name))
	}
}

// hooks are where packets enter base chains.
var hooks = map[string]struct {
	number   *nftables.ChainHook
	priority *nftables.ChainPriority
}{
	prerouting: {nftables.ChainHookPrerouting, nftables.ChainPriorityRaw},
	// Behind IPVS (98), by which kube-proxy may have changed the destination. nft prints a
	// name for priorities between 90 and 110, and 1.0.6 does not load that name in this hook.
	arriving: {nftables.ChainHookInput, nftables.ChainPriorityRef(150)},
	// Before the node's own address becomes the source.
	leaving: {nftables.ChainHookPostrouting, nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 1)},
}

// unneeded returns the chains in the kernel that are not in all.
func (g *Guard) unneeded(all []chain) (gone []*nftables.Chain, err error) {
	kernel, err := g.kernelChains()
	for name := range kernel {
		if !slices.ContainsFunc(all, func(o chain) bool { return o.name == name }) {
			gone = append(gone, &nftables.Chain{Table: g.table, Name: name})
		}
	}
	return gone, err
}

// unneededSets returns the names of those of kernelSets that are not in setNames, except anonymous ones, which are gone
// with the rule that they are a part of.
func (g *Guard) unneededSets(sets map[string][]byte) (gone []string) {
	for name, attrs := range sets {
		isAnonymous := number(rtnetlink.Attr(attrs, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS != 0
		if !isAnonymous && !slices.Contains(g.setNames(), name) {
			gone = append(gone, name)
		}
	}
	return gone
}

// dropMasks makes rules without the sets of networks that no path needs, and deletes
// these sets.
func (g *Guard) dropMasks() error {
	count := len(g.masks)
	for m, uses := range g.masks {
		if uses == 0 {
			delete(g.masks, m)
			delete(g.made, m.set())
		}
	}
	if len(g.masks) == count {
		return nil
	}
	c := *g.config
	c.masks = g.sortedMasks()
	return g.write(c)
}

func (g *Guard) sortedMasks() []mask { return slices.SortedFunc(maps.Keys(g.masks), compareMasks) }

// remove deletes the table, unless there is none. Rules that are written later begin a new trial.
func (g *Guard) remove() error {
	g.trial = trial{}
	stale, relist := g.stale.Swap(false), g.relist.Swap(false) // before the table is deleted: somebody may make another one at once
	if g.absent && !stale && !relist {
		return nil
	}
	_, err := g.deleteTable()
	return err
}

// deleteTable deletes the table, and makes the sets be listed. existed is false if there was
// none. Nothing is dropped until the next write. trial.passed stays: after a trial that was
// passed, the next rules drop packets at once. deleteTable may be called after an error, whose
// unread answers it discards.
func (g *Guard) deleteTable() (existed bool, err error) {
	g.conn.drain()
	g.config, g.foreign = nil, nil
	table, err := g.kernelTable()
	if table != nil {
		g.conn.DelTable(g.table)
		err = g.flush("delete the table")
	}
	if err != nil {
		g.stale.Store(true) // check finds out whether the rules are still there
		return false, err
	}
	g.dropping, g.absent, g.inRules = false, true, nil
	g.trial.unread = true // counters begin anew
	clear(g.made)
	g.tables().Relist()
	return table != nil, nil
}

func (g *Guard) flush(what string) error {
	if err := g.conn.Flush(); err != nil {
		return fmt.Errorf("%s of table %s: %w", what, g.table.Name, err)
	}
	return nil
}
