package guard

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// A node that joins may send its first packets, such as probes, before this node has
// read its lease. The rule outsider, which matches packets to the port of the tunnel that
// are not from a peer, counts them like those of a host that is no node: nothing in a
// packet tells the two apart. So further rules record the senders of the packets that the
// rule outsider counts, each sender with a counter of its own, for rememberFor. When a sender
// becomes a peer, the guard adds its packets to the counter joinedBy(outsider). flanneld status and
// the doctor subtract this counter from that of the rule (status.Found). The counter is in
// the table, and not in flanneld's memory, so that both counters start anew together.
//
// The packets that the rule drops are not recorded: they are reported as dropped, whoever
// sent them.

// joinedBy returns the name of the counter of packets that a rule has counted, and not
// dropped, and whose sender became a peer soon afterwards. No rule counts there. prepare
// and renewCounters make the counter.
func joinedBy(rule string) string { return "joined-" + rule }

// The sets of senders, which rules fill.
const (
	outsiders4 = "outsiders4"
	outsiders6 = "outsiders6"
)

const (
	// rememberFor is longer than a restart of flanneld or an outage of the store usually
	// takes, during which leases are not read. A sender's packets from before that time stay those
	// of an outsider.
	rememberFor  = 10 * time.Minute
	maxOutsiders = 4096 // in each set, against senders that forge addresses; further senders are not recorded
	// expiring is the rest of a sender's time in which it is left alone: the kernel would
	// refuse to delete it after that time, and all other changes with it.
	expiring = 10 * time.Second
)

// record returns a rule for each address family that records the sender of a packet and
// goes on to the next rule. Config.ends puts them where packets of outsider end, before the
// rule that counts and accepts; if that one drops, they are absent.
func record() [][]expr.Any {
	add := func(set string) []expr.Any {
		isV6 := set == outsiders6 // load matches this family alone, whose addresses have the size of the set's keys
		return append(load(source, isV6), &expr.Dynset{SrcRegKey: 1, SetName: set, Operation: unix.NFT_DYNSET_OP_ADD,
			Timeout: rememberFor, Exprs: []expr.Any{&expr.Counter{}}})
	}
	return [][]expr.Any{add(outsiders4), add(outsiders6)}
}

// countJoined moves what is recorded of senders that are peers now to the counter of such
// packets, if Put has added peers since countJoined succeeded last. Apply calls it, after
// the rules know these peers, so that nothing more is recorded of them. Put, Apply and all
// below run on the one goroutine of the Guard's methods. After an error, which Apply logs,
// peersAdded stays true, and the next Apply tries again.
func (g *Guard) countJoined() error {
	if !g.peersAdded {
		return nil
	}
	senders, packets, err := g.joined()
	if err != nil {
		return err
	}
	if packets > 0 {
		if err := g.moveJoined(senders, packets); err != nil {
			return err
		}
	}
	g.peersAdded = false
	return nil
}

// joined returns the recorded senders that are peers, by set, and the number of their
// packets.
func (g *Guard) joined() (senders map[string][]element, packets uint64, err error) {
	senders = map[string][]element{}
	// No map: if both lists fail, the error is always the same, and Apply logs it once.
	for _, sets := range [][2]string{{outsiders4, peers4}, {outsiders6, peers6}} {
		set, peers := sets[0], codeOf(sets[1])
		found := map[element]uint64{} // their packets. A sender that is listed twice counts once, and is deleted once
		err := g.listElements(set, func() { clear(found) }, func(key, attrs []byte) {
			// The sender as an element of the set of peers, for g.peers. Both sets have addresses as
			// keys; those of outsiders have no setCode.
			e := newElement(peers, key...)
			counted := rtnetlink.Attr(attrs, unix.NFTA_SET_ELEM_EXPR, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS)
			expires := rtnetlink.Attr(attrs, unix.NFTA_SET_ELEM_EXPIRATION) // in milliseconds
			if len(counted) != 8 || len(expires) != 8 {
				return // it is none that a rule has added
			}
			if g.peers.exists(e) && binary.BigEndian.Uint64(expires) >= uint64(expiring.Milliseconds()) {
				found[e] = binary.BigEndian.Uint64(counted)
			}
		})
		if err != nil {
			return nil, 0, fmt.Errorf("list set %s: %w", set, err)
		}
		for e, n := range found {
			senders[set] = append(senders[set], e)
			packets += n
		}
	}
	return senders, packets, nil
}

// moveJoined forgets senders, by set, and adds their packets to the counter, all or
// nothing. Nobody sees the counter without its packets.
func (g *Guard) moveJoined(senders map[string][]element, packets uint64) error {
	counted, err := g.counts.read(g.table)
	if err != nil {
		return fmt.Errorf("read the counters of table %s: %w", g.table.Name, err)
	}
	var names []string
	for set, all := range senders { // in any order: they are one transaction
		var keys []nftables.SetElement
		for _, e := range all {
			keys, names = append(keys, nftables.SetElement{Key: e.key()}), append(names, e.String())
		}
		// It only queues, and fails for no set of ours, so that no part of the change is left for a later flush.
		if err := g.conn.SetDeleteElements(g.set(set), keys); err != nil {
			return err
		}
	}
	counter := g.counter(joinedBy(outsider))
	g.conn.DeleteObject(counter) // the kernel cannot set a counter that exists
	counter.Packets = counted[counter.Name] + packets
	g.conn.AddObj(counter)
	// One transaction; after an error, the queue is empty, too.
	if err := g.flush("count the packets of nodes that have joined"); err != nil {
		return err
	}
	g.log.Info("packets that were counted as those of outsiders came from nodes whose leases were not known yet", "cause", causeJoined,
		"packets", packets, "nodes", len(names), "node", slices.Min(names))
	return nil
}
