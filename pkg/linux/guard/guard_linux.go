// Package guard decides who may send into the pod network: it keeps a table of nftables
// that counts and, if it enforces, drops packets that no node or pod of the cluster
// would send. The table is ours alone, and exists beside the rules of package firewall,
// also where these are written by iptables.
//
//	rule      packets                                               sent by
//	outsider  to the port of the tunnel, not from a peer            a host that is no node
//	pod       to the port of the tunnel, from a pod, unless to      a pod, which the node would masquerade
//	          another pod
//	impostor  with a packet inside from the subnet of a peer,         a node that forges
//	          or from an address of its, from another peer
//	inner     out of the tunnel, not from the pod network or a      a node that forges
//	          peer, or from this node's own subnet
//	spoofed   from a pod with an address that is not routed to it,  a pod; a host beside the node
//	          or to the pod network from elsewhere with an address
//	          of the pod network that is not routed there
//
// The rules inner and spoofed are in prerouting, before connection tracking. The others,
// which look for packets of the tunnel, are where such a packet has the destination that
// it will have in the end, and still its own source: last in input, and in postrouting
// before masquerading. Anything earlier can be passed by a Service whose endpoint is the
// port of a tunnel. The addresses of the peers are in sets, which have an address before
// there is a route to the peer, or before the first rules, and lose it after the route is gone.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// Config is what the rules depend on, apart from the peers.
type Config struct {
	Enforce  bool             // drop; else only count
	Trial    time.Duration    // for which nothing that claims to be from a peer's pod must have been found before packets are dropped
	Networks []netip.Prefix   // of all pods, masked
	Subnets  []netip.Prefix   // of this node's pods, masked
	Tunnels  []string         // names of this node's tunnel devices that exist
	Errors   []netip.Addr     // of this node: those from which the forwarder of the backend udp sends ICMP errors, out of the tunnel device
	Outer    dataplane.Traits // of the kind of tunnel, which sends UDP, or IPv4 packets in IPv4; Protocol 0: there are no outer packets
	Routed   bool             // there is a route to each peer's subnet; false: policies of IPsec lead there
	Sources  []netip.Prefix   // further senders of outer packets, masked

	masks []mask // lengths of networks, sorted: there is a set for each (impostor_linux.go). fill sets them, not the caller
}

// Guard keeps the table. Its methods are for the daemon's loop (by type guarding of package linux),
// except Counts, FoundOfPeer, ObserveAddr and Relist, which any goroutine may call.
type Guard struct {
	table  *nftables.Table // its name and family
	notify func()          // has the loop make a pass, which calls Apply; does not block
	log    *slog.Logger

	conn   *conn               // for changes and lists, by the loop alone
	dumps  *rtnetlink.Conn     // for lists of chains, sets and their elements (dump)
	counts counters            // has a connection of its own, for any goroutine
	watch  *rtnetlink.Listener // calls observe, on its goroutine

	peers      peerTable                           // the addresses and networks of peers, in several sets
	pods       *reconcile.Table[element, struct{}] // the names of the interfaces of pods
	others     reconcile.CompactMap[element, int]  // number of further paths that want an element of peers
	peersAdded bool                                // by Put, since countJoined succeeded last; true at first
	masks      map[mask]int                        // number of uses by paths; 0: not needed after the next Prune
	made       map[string]bool                     // the kernel has these sets, by name
	foreign    map[string][]string                 // of foreignSets at the last check, until replaceForeign has seen them
	replaced   map[string]int                      // by attribute of foreign sets: 1: the table was replaced; 2: they were then kept, and the log says so

	samples *sampler
	trial   trial

	config   *Config           // of the rules in the kernel; nil: none, or not known, so that fill writes all of them
	compared uint32            // the generation of nf_tables (see rtnetlink.TablesGeneration) at which check last read the table; 0: not known
	rules    []uint64          // their handles, with which check compares those that it lists
	inRules  []mask            // of sets that the rules in the kernel look at, as far as is known; nil: there are no rules
	dropping bool              // they drop packets, as far as is known
	absent   bool              // there is no table, unless others have made it; false: there may be one
	recount  bool              // the next rules count from 0
	retry    reconcile.Backoff // of what failed in Apply and Prune, unless their caller retries (see setDue)
	retries  bool              // the caller retries what Apply and Prune return, since the guard has to enforce
	on       bool              // the last Apply had a Config
	due      *time.Timer       // calls notify when a retry or a look of the trial is due
	said     reconcile.Once    // which errors to log after which the guard works all the same (see Apply)
	subnets  atomic.Value      // []netip.Prefix, for ObserveAddr
	// unapplied is the error of the last Apply, and unpruned that of the last Prune, if retry is for it; else nil.
	unapplied, unpruned error
	// stale: others may have changed the table. podsStale: the interfaces of pods may
	// have changed. relist, by Relist: check reads the table if nf_tables has changed.
	stale, podsStale, relist atomic.Bool

	interrupted bool // by dump, since the last check began or the last write ended: a list may be incomplete
	incomplete  bool // interrupted when the last write ended: the next check has the rules written again
}

// New opens the guard of a flanneld (see cmd/flanneld/instance.go) in the network namespace of
// the calling thread. Apply must be called in the same namespace. New changes nothing. notify is
// called, by any goroutine, when Apply is due.
func New(log *slog.Logger, instance string, notify func()) (*Guard, error) {
	name := "flannel-guard"
	if instance != "" {
		name += "-" + instance
	}
	g := &Guard{samples: newSampler(log, notify), table: &nftables.Table{Family: nftables.TableFamilyINet, Name: name}, notify: notify, log: log,
		peersAdded: true, masks: map[mask]int{}, made: map[string]bool{}, replaced: map[string]int{}, retry: reconcile.Backoff{First: firstRetry, Last: lastRetry},
		said: reconcile.Once{Repeat: repeatLog}}
	g.due = time.AfterFunc(time.Hour, notify) // any time: setDue starts it
	g.due.Stop()
	g.peers, g.pods = newPeerTable(g), newPodTable(g)
	g.stale.Store(true)
	g.podsStale.Store(true)
	var err error
	if g.conn, err = open(); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	if g.counts.conn, err = open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open nftables: %w", err), g.conn.CloseLasting())
	}
	if g.dumps, err = rtnetlink.Dial(unix.NETLINK_NETFILTER); err != nil {
		return nil, errors.Join(err, g.conn.CloseLasting(), g.counts.conn.CloseLasting())
	}
	if g.watch, err = rtnetlink.Listen(g.notifications()); err != nil {
		return nil, errors.Join(err, g.conn.CloseLasting(), g.counts.conn.CloseLasting(), g.dumps.Close())
	}
	return g, nil
}

// Close stops watching. The table stays.
func (g *Guard) Close() error {
	err := g.watch.Close()
	g.trial.end()
	g.due.Stop()
	return errors.Join(err, g.samples.close(), g.conn.CloseLasting(), g.counts.conn.CloseLasting(), g.dumps.Close())
}

// tables are those of the sets. Senders are last: fill relies on it.
func (g *Guard) tables() dataplane.Tables {
	return append(append(g.peers.networks.tables(), g.pods), g.peers.senders.tables()...)
}

// Relist makes the next Apply find the interfaces of pods again, and read the table if nf_tables has
// changed since the last check, for a resync.
func (g *Guard) Relist() { g.relist.Store(true); g.podsStale.Store(true) }

// Reset makes the guard want no peers. All paths are put again before the next Apply.
func (g *Guard) Reset() {
	g.peers.networks.tables().Reset()
	g.peers.senders.tables().Reset()
	g.others = reconcile.CompactMap[element, int]{}
	for m := range g.masks {
		g.masks[m] = 0
	}
	g.samples.reset()
}

// Put wants or drops the peer at the end of a path. A peer may have several paths.
func (g *Guard) Put(verb dataplane.Verb, p *dataplane.Path) {
	if verb == dataplane.CollectKeys { // keys are for finding the path of a refused entry; none of the guard's is a peer's fault
		return
	}
	g.samples.put(p, verb == dataplane.Want)
	forElements(p, func(e element) { g.put(verb, e) })
}

// put wants or drops an element for one path.
func (g *Guard) put(verb dataplane.Verb, e element) {
	if m, isNetwork := e.mask(); isNetwork && verb == dataplane.Want {
		g.masks[m]++
	} else if isNetwork {
		g.masks[m]--
	}
	switch others, _ := g.others.Get(e); {
	case verb == dataplane.Want && g.peers.wanted(e):
		g.others.Set(e, others+1)
	case verb == dataplane.Want:
		g.peers.want(e)
		g.peersAdded = true
	case others == 0:
		g.peers.drop(e)
	case others == 1:
		g.others.Delete(e)
	default:
		g.others.Set(e, others-1)
	}
}

// Apply makes the rules those of c, and adds the peers that were put, and the interfaces of pods.
// With nil, it deletes the table. Packets meet either the former or the new rules, and no rules judge
// the packets of a peer before the sets have the peer, apart from what judgesNewSenders describes. interfaces
// returns the names of the interfaces that have an address in c.Subnets. If c.Enforce is set, the caller retries
// after an error. After any other error, and after one that is only logged, notify is called when Apply is due.
func (g *Guard) Apply(ctx context.Context, o dataplane.Options, c *Config, interfaces func() ([]string, error)) (err error) {
	if on := c != nil; on != g.on { // a table that is to be deleted does not wait for the pause of a guard that was on
		g.on = on
		g.retry.Clear()
	}
	var logged error // an error after which the guard works, but reports less
	if c == nil {
		if err = g.remove(); err == nil {
			g.unpruned = nil // the peers are gone with the table
		}
	} else {
		g.subnets.Store(c.Subnets)
		logged = g.samples.bind(groupOf(g.table.Name))
		if err = g.update(ctx, o, *c, interfaces); err == nil {
			logged = errors.Join(logged, g.countJoined())
		}
	}
	// After an error of update, the guard does not work, and countJoined was not called.
	if err == nil && g.said.Due(logged, time.Now()) && logged != nil { // Due also records nil, a success
		g.log.Warn("the guard works, but not all that it finds is reported", "cause", causeIncomplete, "error", logged)
	}
	if err != nil || logged != nil {
		g.conn.drain() // of answers that were not read, which the next request would take for its own
	}
	if err != nil {
		g.trial.look = time.Time{} // whoever tries again looks then
	}
	if g.retries = c != nil && c.Enforce; !g.retries {
		logged = errors.Join(logged, err)
	}
	g.unapplied = logged
	g.setDue()
	return err
}

// update is the part of Apply whose errors are returned, for a guard that is on.
func (g *Guard) update(ctx context.Context, o dataplane.Options, c Config, interfaces func() ([]string, error)) error {
	stale, relist := g.stale.Swap(false), g.relist.Swap(false)
	if stale {
		g.compared = 0 // a notification outvotes the generation, which the last check may have read too early
	}
	if stale || relist {
		if err := g.check(o); err != nil {
			g.stale.Store(true)
			return err
		}
	}
	if g.podsStale.Swap(false) {
		names, err := interfaces()
		if err != nil {
			g.podsStale.Store(true)
			return fmt.Errorf("find the interfaces of pods: %w", err)
		}
		g.pods.Reset()
		for _, name := range names {
			if !slices.Contains(c.Tunnels, name) {
				g.pods.Want(newElement(codeOf(pods), []byte(ifname(name))...), struct{}{})
			}
		}
	}
	c.Enforce = g.mayEnforce(c, time.Now()) // false until the end of the trial
	g.samples.set(c)
	if err := g.replaceForeign(o); err != nil {
		return err
	}
	err := g.fill(ctx, o, c)
	if conflict := err; isConflict(conflict) { // something of another type has one of our names: begin with an empty table
		var existed bool
		if existed, err = g.deleteTable(); err != nil {
			return err
		}
		if existed {
			g.log.Info("replacing the guard's table, the kernel refused to change it", "table", g.table.Name, "error", conflict)
		}
		err = g.fill(ctx, o, c)
	}
	return err
}

// Enforces reports whether the rules drop packets, and, if they should but do not yet,
// why. last describes the packet for which they wait, or is empty: a part of the reason
// that anybody who sends packets can change.
func (g *Guard) Enforces() (enforces bool, waiting, last string) {
	return g.dropping, g.trial.waiting, g.trial.last
}

// Judges reports whether rules in the kernel may judge packets before the next Apply has added
// the peers: if there is a table, maybe of an earlier run, or if that cannot be read.
func (g *Guard) Judges() bool {
	if g.config != nil {
		return true
	}
	table, err := g.kernelTable()
	if err != nil {
		g.conn.drain()
	}
	return err != nil || table != nil
}

// Drops reports whether the rules in the kernel drop packets that the peer at the end of
// a path sends through a tunnel, because the sets of peers or owners lack it. Packets in
// no tunnel, or in one whose keys say who the sender is, are judged by routes.
func (g *Guard) Drops(p *dataplane.Path) bool {
	switch p.Encap.(type) {
	case dataplane.Direct, dataplane.WireGuardPeer, dataplane.ESP:
		return false
	}
	if !g.dropping {
		return false
	}
	drops := false
	forElements(p, func(e element) {
		m, isNetwork := e.mask()
		// Without an element of the other sets, rules find less, not more.
		needed := m.kind == owners || !isNetwork && (e.set() == peers4 || e.set() == peers6)
		drops = drops || needed && !g.peers.exists(e)
	})
	return drops
}

// Prune removes the peers and interfaces that are gone, and then the sets of networks
// that no path needs any more. It is called after Apply. Who retries after an error is as
// with Apply.
func (g *Guard) Prune(ctx context.Context, o dataplane.Options) (err error) {
	if g.config != nil { // else the table is gone, or Apply has failed: the next Prune does it
		if err = g.tables().Prune(ctx, o); err == nil {
			err = g.dropMasks()
		}
	}
	if err != nil {
		g.conn.drain()
	}
	if g.unpruned = err; g.retries {
		g.unpruned = nil
	}
	g.setDue()
	return err
}

// ObserveAddr records that an address of an interface has changed. It reports whether
// that may concern the guard.
func (g *Guard) ObserveAddr(a netip.Addr) bool {
	subnets, _ := g.subnets.Load().([]netip.Prefix)
	if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
		return false
	}
	g.podsStale.Store(true)
	return true
}

// Counts returns the numbers of packets by rule, since the table was made: of those that it found, of
// those of them that it dropped, and of those that it did not drop and whose senders became peers soon
// afterwards. They are nil if they cannot be read, and empty if there is no table.
func (g *Guard) Counts() (packets, dropped, joined map[string]uint64) {
	counters, err := g.counts.read(g.table)
	if err != nil {
		return nil, nil, nil
	}
	packets, dropped, joined = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	for _, rule := range ruleNames {
		counted, hasCounted := counters[countedBy(rule)]
		drops, hasDropped := counters[droppedBy(rule)]
		if hasCounted && hasDropped { // else only a part of the table is there
			packets[rule], dropped[rule], joined[rule] = counted+drops, drops, counters[joinedBy(rule)]
		}
	}
	return packets, dropped, joined
}

// Remove deletes the table, for the commands cleanup and handback, and returns its description if
// there is one; with dryRun it deletes nothing.
func (g *Guard) Remove(dryRun bool) (removed []string, err error) {
	table, err := g.kernelTable()
	if table == nil {
		return nil, err
	}
	if !dryRun {
		err = g.remove()
	}
	return []string{"nftables table inet " + g.table.Name}, err
}
