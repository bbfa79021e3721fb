// Package reach finds out which peers this node reaches: it sends them ICMP echo
// requests, and listens for theirs. It makes no system calls; a Conn sends and receives.
//
// A node sends about one request a second, whatever the number of peers (see
// schedule.go). The kernel of every peer answers, also where flannel runs. A request of
// ours tells a flanneld at the other end when this node last heard of it (see
// message.go), so that two of them can tell the directions apart.
//
//	state        cause                                                    next
//	unknown, unreachable, one-way                                         alive
//	             an answer, or the peer hears us
//	alive        misses requests in a row for minOutage; nothing is heard unreachable
//	alive        misses requests in a row for minOutage; it is heard      one-way
//	unreachable  the peer is heard, and misses the next request           one-way
//	one-way      nothing is heard for heardFor                            unreachable
//	any          the peer's lease or this node changes                    unknown
//
// "alive" stands for the first of these states whose condition holds:
//
//	not-forwarding  the peer says that it does not forward its pods' packets; or it
//	                misses requests that it has to forward, but answers at its bridge
//	unproven        only its public IP has answered so far: that is a Windows node, or
//	                there is no tunnel, and no bridge has answered
//	mtu             misses requests of the full size in a row, but no others
//	reachable       the pods' way has answered: the peer's tunnel device or its bridge,
//	                to an address of this node's tunnel device or bridge
//
// "In a row" means missLimit misses without an answer between them. Nothing is a miss
// while this node itself is not up to date, or its underlay is down: a peer is then
// reported as unknown. Nor is what was not answered while the daemon was stopped, such as
// with its virtual machine or by SIGSTOP.
package reach

import (
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

const (
	interval = time.Second // between requests of this node

	timeout  = 2 * time.Second  // after which a request is a miss; far longer than round trips take
	lateness = 20 * time.Second // after a request, in which an answer to it still shows that it has arrived
	// missLimit is the number of misses in a row from which on a request is not just lost.
	missLimit = 3
	// minOutage is the shortest time between the first and the last of the misses: a link
	// that is down for a moment is no outage.
	minOutage = 5 * time.Second
	// grace is for peers that have a new lease, and for all peers after this node has
	// changed: nodes do not learn of a change in the same instant.
	grace = 20 * time.Second
	// heardFor is how long after its last request a peer still counts as heard, if it
	// does not answer.
	heardFor = 30 * time.Second

	checkEvery    = 10 * time.Second // between checks of one kind of one peer, at least
	bridgeEvery   = time.Minute      // between requests to a bridge that does not answer
	maxRetryAfter = 10 * time.Second

	// paused is the time between two turns (usually interval, or twice that) above which the
	// daemon is believed to have been stopped in between, such as with its virtual machine or
	// by SIGSTOP.
	paused = 4 * time.Second
)

// Addressing says which addresses of peers answer.
type Addressing uint8

const (
	// None of them may answer, or there are no paths.
	None Addressing = iota
	// Tunnels have the base address of the subnet, and pods' bridges the one after it.
	Tunnels
	// Bridges have the address after the base address, if a pod has run there. There are
	// no tunnel devices.
	Bridges
)

// Network is what the daemon knows after a pass. Nothing in it may be modified
// afterwards.
type Network struct {
	Local      subnet.Lease // this node's
	Peers      []*subnet.Lease
	Addressing Addressing
	Typed      bool               // a peer whose lease has no backend type has no path yet; false with udp
	Refused    []subnet.Rejected  // the system refused an entry of the peer
	Rejects    []subnet.Rejected  // peers without a path, as their leases are invalid or in conflict
	Retained   []*subnet.Retained // of which there is no alarm, since they may be gone
	MTU        int                // of pods, bytes
	Link       string             // the name of the underlay interface
	LinkIndex  int
	Synced     bool // the pass set everything that peers need
	// Hops is the hop limit of a packet to a pod with which the kernel of the peer is the
	// last to process it; 0: there is none, or nobody would answer.
	Hops int
	// NotForwarding means that this node does not forward IPv4 packets of its pods.
	NotForwarding bool
}

// Equal reports whether two networks are the same.
func (n *Network) Equal(other *Network) bool {
	return n.Local.Equal(&other.Local) && slices.Equal(n.Peers, other.Peers) && n.Addressing == other.Addressing && n.Typed == other.Typed &&
		slices.Equal(n.Refused, other.Refused) && slices.Equal(n.Rejects, other.Rejects) && slices.Equal(n.Retained, other.Retained) &&
		n.MTU == other.MTU && n.Link == other.Link && n.LinkIndex == other.LinkIndex && n.Synced == other.Synced &&
		n.Hops == other.Hops && n.NotForwarding == other.NotForwarding
}

// request is an echo request that is due.
type request struct {
	from, to netip.Addr
	hops     int // its hop limit; 0: that of the system
	body     []byte
}

// purpose is what a request is for. All but small belong to a check.
type purpose uint8

const (
	// small requests ask whether the peer answers at all.
	small purpose = iota
	// fullSize requests have the size of the pods' MTU.
	fullSize
	// atBridge requests are small ones to the bridge, without which the peer has no way
	// to forward packets to pods.
	atBridge
	// forwarded requests are for a pod, and their hop limit ends in the kernel of the
	// peer. The kernel answers for the pod, which gets nothing, if it would have forwarded
	// the packet: if forwarding is on for the device on which it arrived, and there is a
	// route.
	forwarded
)

// check is a test of what small requests do not show, such as the size. It is made in
// intervals. Its requests also go unanswered while the peer answers nothing. Therefore a
// check has failed only after missLimit misses and a confirmation: a request of another
// purpose that was sent after the last one of the check, and answered. full is confirmed
// by a small request or one atBridge, forwarding only by one atBridge.
type check struct {
	due       moment // the next request. A moment is a time in less memory (moment.go); zero: never
	sent      moment // the last request
	misses    int32  // in a row
	confirmed bool   // see above; false again with each miss
	failed    bool   // until a request is answered
	answered  bool   // at least once
}

// restart forgets misses and the result, and makes the check due at a time.
func (c *check) restart(due moment) { c.misses, c.confirmed, c.failed, c.due = 0, false, false, due }

// judge sets failed if the misses are enough and confirmed.
func (c *check) judge(now moment) {
	if c.misses >= missLimit && c.confirmed && !c.failed {
		c.failed, c.due = true, now.Add(checkEvery)
	}
}

// suspicious reports whether requests were missed, and it is not known yet whether the cause is
// what the check tests, or an outage.
func (c *check) suspicious() bool { return c.misses > 0 && !c.failed }

// target is one address family of a peer. There is one for each of thousands of peers, so
// small fields stand together.
type target struct {
	peer *peer
	at   *subnet.Endpoint // V4 or V6 of peer.lease

	main       tally      // see tally
	under      *tally     // with Bridges; else nil
	full       check      // whether it gets packets of the full size
	forwarding check      // whether it forwards to its pods
	asked      int32      // requests, to alternate addresses
	bridgeLost int32      // requests atBridge in a row that were missed
	latest     purpose    // of the last request
	kind       Addressing // which addresses are asked; None: only the public IP (Windows)
	gone       bool       // no longer of the network
	hasPods    bool       // the bridge has answered, so it exists
	viaBridge  bool       // with Tunnels: the bridge answered last, not the device
	told       bool       // by the latest request that was sent, that this node does not forward
	suspect    bool       // in mesh.suspects: nextSuspect asks it soon, and removes it
	state      state

	since   moment // of state
	added   moment // when the target was made, for this lease
	refuses moment // when the peer said last that it does not forward; zero: it forwards
	probed  moment // the last request
	rtt     time.Duration
	last    moment // the last answer, which the status shows
}

// state is a status.ReachState in a byte. The numbers order states by how bad they are: of
// the targets of a peer, the worst one counts. Those above unproven raise an alarm.
type state uint8

const (
	unknown state = iota
	reachable
	unproven
	smallOnly // mtu in the table above
	notForwarding
	oneWay
	unreachable
)

// status is the state in reports.
func (s state) status() status.ReachState {
	return [...]status.ReachState{status.UnknownReach, status.Reachable, status.Unproven, status.SmallOnly,
		status.NotForwarding, status.OneWay, status.Unreachable}[s]
}

// retry is when nextDown asks a target again.
type retry struct {
	next       moment
	retryAfter time.Duration // between requests
}

// tally counts the requests on one way to a target that were not answered. With Bridges,
// main is the way to the bridge, which pods' packets take, and under the way to the public
// IP. In all other cases there is no under, and main is the way to the tunnel device and
// the bridge, or to a Windows node's public IP. target.counting returns the one by which
// the state is decided.
type tally struct {
	missed int    // in a row
	first  moment // when the first of them was sent
	latest moment // when the latest of them was sent
	alive  moment // when the latest request was sent that arrived; zero: none
	heard  moment // when the latest request of the peer arrived on this way; zero: none
}

// miss records that a request was not answered that was sent at that time. An answer to a
// later one outweighs it.
func (t *tally) miss(sent moment) {
	if !sent.After(t.alive) {
		return
	}
	if t.missed++; t.missed == 1 {
		t.first = sent
	}
	t.latest = sent
}

// arrived records that a request arrived that was sent at that time.
func (t *tally) arrived(sent moment) {
	if sent.After(t.alive) {
		t.alive = sent
	}
	if !sent.Before(t.first) {
		t.missed = 0
	}
}

// out reports whether the address does not answer any more.
func (t *tally) out() bool { return t.missed >= missLimit && t.latest.Sub(t.first) >= minOutage }

// ever reports whether any request has arrived.
func (t *tally) ever() bool { return !t.alive.IsZero() }

// peer is another node.
type peer struct {
	lease    *subnet.Lease
	targets  []*target
	alarm    moment // since when it is logged not to be reachable; zero: it is not
	retained moment // since when no alarm begins, because the store has lost its lease; zero: it is not retained
	seen     uint32 // the mesh.passes of the last pass that had it
	alarmed  state  // that is logged; unknown: none
	behind   bool   // the system refused an entry
}

// mesh is the state of all peers. It is not safe for concurrent use: only a Prober calls
// its methods, and holds Prober.mu. A round asks each target once, in a random order; beside
// the rounds, suspects and targets that are down are asked (Turn, in schedule.go).
type mesh struct {
	began    time.Time // for moments
	network  Network   // zero before the first Update: there are no peers
	judging  bool      // misses count: this node is up to date, and its underlay is up
	since    moment    // when judging changed last
	linkUp   bool      // the underlay has a carrier
	peers    reconcile.CompactMap[string, *peer]
	bySource reconcile.CompactMap[netip.Addr, *target] // by the addresses from which a peer sends requests
	order    []*target                                 // of the round
	position int                                       // in order
	suspects []*target                                 // that missed a request, the one waiting longest first
	down     reconcile.CompactMap[*target, retry]      // that do not answer any more; nextDown asks them, the rounds do not
	waiting  map[uint64]*sent                          // by token: a number in the request, which the answer repeats
	turn     uint64                                    // number of turns
	last     moment                                    // the last turn
	passes   uint32                                    // number of calls of Update
	random   func(n int) int                           // a number below n
	token    func() uint64                             // any number
	changed  reconcile.CompactMap[*peer, struct{}]     // with a target whose state changed since the last call of Changes, or retained no longer
	counts   status.Probes                             // without Peers
}

// sent is a request that may still be answered.
type sent struct {
	target  *target
	to      netip.Addr
	at      moment
	purpose purpose
	missed  bool // expire has counted it, or never will (forgetMisses)
	told    bool // target.told before this request
}
