// Package reach finds out which peers this node reaches: it sends them ICMP echo
// requests, and listens for theirs. It makes no system calls; a Conn sends and receives.
//
// A node sends about one request a second, whatever the number of peers (see
// schedule.go). The kernel of every peer answers, also where flannel runs. A request of
// ours tells a flanneld at the other end when this node last heard of it (see
// message.go), so that two of them can tell the directions apart.
//
//	state        cause                                                    next
//	unknown      an answer, or the peer hears us                          reachable
//	reachable    misses requests of the full size in a row, but no others mtu
//	mtu          an answer to a request of the full size                  reachable
//	any          misses requests in a row for minOutage; nothing is heard unreachable
//	any          misses requests in a row for minOutage; it is heard      one-way
//	unreachable  the peer is heard, but does not hear us                  one-way
//	one-way      nothing is heard for heardFor                            unreachable
//	unreachable, one-way   an answer, or the peer hears us                reachable
//	any          the peer's lease or this node changes                    unknown
//
// In a row are misses misses. Nothing is a miss while this node itself is not up to
// date, or its underlay is down: a peer is then reported as unknown. Nor is what was not
// answered while the daemon was paused, as when the machine was suspended.
package reach

import (
	"net/netip"
	"time"

	"flannel/pkg/status"
	"flannel/subnet"
)

const (
	interval = time.Second // between requests of this node, on average

	timeout  = 2 * time.Second  // after which a request is not answered
	lateness = 20 * time.Second // for which an answer still counts
	misses   = 3
	// minOutage is the shortest time between the first and the last of the misses: a link
	// that is down for a moment is no outage.
	minOutage = 5 * time.Second
	// grace is for peers that have a new lease, and for all peers after this node has
	// changed: nodes do not learn of a change in the same instant.
	grace = 20 * time.Second
	// heardFor is how long after its last request a peer still counts as heard, if it
	// does not answer.
	heardFor = 30 * time.Second

	fullSizeEvery = 10 * time.Second // between requests of the full size to one peer, at least
	maxBackoff    = 10 * time.Second

	// paused is the time between two turns from which the daemon did not run in between,
	// as when the machine was suspended.
	paused = 3 * time.Second
)

// Addressing says which addresses of peers answer.
type Addressing int

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
	Skip       func(*subnet.Lease) bool // there is no path to the peer
	Refused    []subnet.Rejected        // the system refused an entry of the peer
	Rejects    []subnet.Rejected        // these have no path
	Retained   []*subnet.Retained       // of which there is no alarm, since they may be gone
	MTU        int                      // of pods, bytes
	Link       string                   // the name of the underlay interface
	LinkIndex  int
	Synced     bool // the pass set everything that peers need
}

// request is an echo request that is due.
type request struct {
	from, to netip.Addr
	body     []byte
}

// target is one address family of a peer.
type target struct {
	peer    *peer
	subnet  netip.Prefix
	public  netip.Addr
	kind    Addressing // None: only the underlay answers (Windows)
	gone    bool       // no longer of the network
	answers netip.Addr // that answered last; zero: none
	hasPods bool       // the bridge has answered, so it exists

	main, under tally // under: of the public IP, with Bridges
	asked       int   // requests, to alternate addresses

	fullDue     time.Time // when one of the full size is due
	fullSent    time.Time // the last one
	fullMisses  int       // in a row
	fullChecked bool      // a small one was answered after the last of them

	state   status.ReachState
	since   time.Time // of state
	added   time.Time
	probed  time.Time
	heard   time.Time
	rtt     time.Duration
	last    time.Time     // the last answer
	next    time.Time     // when it is probed again, if it does not answer
	backoff time.Duration // between requests; 0: it answers
	suspect bool          // in Mesh.suspects
}

// tally counts the requests that an address did not answer.
type tally struct {
	missed int       // in a row
	first  time.Time // when the first of them was sent
	latest time.Time // when the latest of them was sent
	alive  time.Time // when the latest request was sent that arrived; zero: none
}

func (t *tally) miss(sent time.Time) {
	if !sent.After(t.alive) {
		return
	}
	if t.missed++; t.missed == 1 {
		t.first = sent
	}
	t.latest = sent
}

// arrived records that a request arrived that was sent at that time.
func (t *tally) arrived(sent time.Time) {
	if sent.After(t.alive) {
		t.alive = sent
	}
	if !sent.Before(t.first) {
		t.missed = 0
	}
}

// out reports whether the address does not answer any more.
func (t *tally) out() bool { return t.missed >= misses && t.latest.Sub(t.first) >= minOutage }

func (t *tally) ever() bool { return !t.alive.IsZero() }

// peer is another node.
type peer struct {
	name     string
	lease    *subnet.Lease
	targets  []*target
	behind   bool      // the system refused an entry
	retained bool      // there is no alarm
	alarm    time.Time // since when it is logged not to be reachable; zero: it is not
	alarmed  status.ReachState
	seen     uint64
}

// Mesh is the state of all peers. It is not safe for concurrent use.
type Mesh struct {
	network  Network
	judging  bool      // misses count
	since    time.Time // of judging
	linkUp   bool
	peers    map[string]*peer
	bySource map[netip.Addr]*target // by the addresses from which a peer sends requests
	order    []*target              // of the round
	position int                    // in order
	suspects []*target              // that missed a request, the one waiting longest first
	down     map[*target]struct{}   // unreachable or one-way
	waiting  map[uint64]*sent
	turn     uint64
	last     time.Time // the last turn
	passes   uint64
	random   func(n int) int
	token    func() uint64
	changed  map[*peer]struct{} // with a target whose state changed
	counts   Counts
}

// Counts are of requests since the start.
type Counts struct{ Sent, Answered, Failed uint64 } // Failed: could not be sent

// sent is a request that may still be answered.
type sent struct {
	target *target
	to     netip.Addr
	at     time.Time
	full   bool
	missed bool
}
