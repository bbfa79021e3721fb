package kube

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"
)

// This file lists the Nodes for a follower, on the follower's goroutine. The table of states, and the fields (reached,
// floor, rewound, broken, lagging, known), are in follow.go.

// relists paces the lists after a lost position: one that the API server no longer has or does not have yet, or one
// before an event that cannot be decoded. In a cluster of more than spreadFrom Nodes, they also pace the lists after one
// that the API server is too busy for. An API server that restarts loses the positions of all daemons at once, and all
// receive the same events; a list is the most expensive request of a daemon. So the daemons spread their lists over a time
// that grows with the cluster, and a daemon that loses its position repeatedly doubles the pause.
type relists struct {
	count int       // of lists since the last time that the position lasted for relistOver
	last  time.Time // when next was called last
}

const (
	relistMin  = 100 * time.Millisecond // in a cluster of up to 25 Nodes
	relistEach = 4 * time.Millisecond   // per Node: 20 s among 5,000
	relistMax  = 30 * time.Second       // whatever the number of Nodes and losses
	// relistOver is how long the position must last for the next loss to count as the first.
	relistOver = 2 * time.Minute
)

// next counts a list and returns the pause before it, which is random: a quarter to all of d, so that the daemons
// spread.
func (r *relists) next(now time.Time, nodes int) time.Duration {
	if now.Sub(r.last) > relistOver {
		r.count = 0
	}
	// Twice as long for each loss before. At most 10 times: the result is above relistMax then, and more could overflow.
	d := min(max(relistMin, time.Duration(nodes)*relistEach)<<min(r.count, 10), relistMax)
	r.count++
	r.last = now
	return d/4 + rand.N(d*3/4)
}

// relistPause counts a list and returns the pause before it. In a store that was rewound, the list has whole Nodes, which
// are eight times the bytes of their metadata (see read), so the pause is that of eight times the Nodes.
func (s *follower) relistPause() time.Duration {
	nodes := len(s.known)
	if s.rewound {
		nodes *= 8
	}
	return s.relists.next(time.Now(), nodes)
}

// check compares, after a lost connection, the store's resourceVersion with our last position (reached). A store that was
// restored from a backup is behind it. A watch from our position would stay silent until the store has passed it, and a
// list not older than our position would be rejected. So check marks the store as rewound, lowers floor (the version from
// which the next list may be), and returns errRelist: follow pauses, and lists.
func (s *follower) check(ctx context.Context) error {
	version, err := s.m.api.StoreVersion(ctx) // from etcd, not from the API server's memory
	if err != nil {
		return err
	}
	s.broken, s.lagging, s.wasBusy = false, false, false // the store has answered: no other check before the next failure
	if older(version, s.reached) {
		return s.rewind(version)
	}
	return nil
}

// rewind marks the store as rewound. The next list has whole Nodes (see read), and is not older than version, the store's
// own now. It returns errRelist.
func (s *follower) rewind(version string) error {
	s.m.log.Error("store of the Kubernetes API was restored from a backup, relisting", "cause", causeStoreOlder)
	s.floor, s.rewound = version, true
	return errRelist
}

// older reports whether resourceVersion a is older than b. All resources of a store share one sequence of versions. It
// is false if one of them is not a number, such as "".
func older(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

// list reads the Nodes and hands over all of them, and a change without a Node for each known one that is missing. It
// sets the position. A Node whose podCIDR is unknown is handed over later (see recordNode).
//
// A store that was restored with etcdutl's --bump-revision is ahead of our position, but it has Nodes as they were at the
// time of the backup. If a Node in the list is older than we know it, list marks the store as rewound, hands over nothing,
// and returns errRelist.
func (s *follower) list(ctx context.Context) error {
	var changes []change
	present := map[string]bool{} // by name
	ownUID := ""                 // "": our Node is missing
	same := 0                    // number of Nodes that have the same UID as before
	olderNode := false           // a Node has an older resourceVersion than before
	version, err := s.read(ctx, func(n *storedNode) {
		changes = append(changes, change{name: n.Name, node: n})
		present[n.Name] = true
		if n.Name == s.m.ownName() {
			ownUID = n.UID
		}
		if k := s.known[n.Name]; k.uid == n.UID {
			same++
			olderNode = olderNode || older(n.Version, k.version)
		}
	})
	if err != nil {
		return err
	}
	if olderNode && !s.rewound {
		return s.rewind(version)
	}
	replaced := s.replacedBy(version, ownUID, same)
	missing := 0
	for name := range s.known {
		if !present[name] {
			changes = append(changes, change{name: name})
			missing++
		}
	}
	for name := range s.lookups.byName {
		if !present[name] && s.known[name].uid == "" {
			delete(s.lookups.byName, name) // a Node whose podCIDR is unknown, and which was never handed over: nor is its removal
		}
	}
	if s.only != "" && len(changes) == 0 { // the consumer must learn at the first list, too, that its Node does not exist
		changes = append(changes, change{name: s.only})
	}
	if replaced && s.only == "" {
		s.m.log.Error("store of the Kubernetes API was replaced, retaining missing nodes as peers",
			"cause", causeStoreChanged, "missing", missing, "present", len(present))
	}
	if s.known == nil {
		s.known = make(map[string]known, len(changes))
	}
	complete := changes[:0] // those to hand over now; shares the memory of changes
	for _, c := range changes {
		c.replaced = replaced
		if s.recordNode(c) { // false: a lookup of its podCIDR hands it over
			complete = append(complete, c)
		}
	}
	if err := s.handOver(ctx, complete); err != nil {
		// known stays as it is now. That does no harm: handle fails only in feeds of one Node, which the next list hands
		// over again, or a change without it.
		return err
	}
	s.moveTo(version)
	s.broken, s.wasBusy, s.rewound = false, false, false
	return nil
}

// read reads all Nodes, or the only one, and calls each with them. The version is the list's position.
//
// After a lost position it reads only metadata, an eighth of the bytes, because the podCIDRs are known. If the store was
// rewound, it reads whole Nodes: a Node that has no podCIDR in the backup may get another one than before, under the same
// UID.
//
// The list accepts any version from floor on, so that the API server answers from its memory, without load for etcd. It
// does not page: the API server ignores a limit when it answers from memory, or reads from etcd because of it.
func (s *follower) read(ctx context.Context, each func(*storedNode)) (version string, err error) {
	switch {
	case s.only != "":
		return s.m.api.Nodes(ctx, s.only, s.floor, each)
	case s.known == nil:
		return s.listFirst(ctx, each)
	case s.rewound:
		return s.m.api.Nodes(ctx, "", s.floor, each)
	}
	return s.m.api.NodesMetadata(ctx, s.floor, each)
}

// replacedBy reports whether a list comes from another or an older store than the list before: its version is older, or
// our Node and at least half of the others are missing in it or have another UID. If most of the others are the same, our
// Node was deleted in the same store, for example while this node was cut off from it. ownUID is that in the list, "" if
// our Node is missing, and same is the number of Nodes that have the same UID as before.
func (s *follower) replacedBy(version, ownUID string, same int) bool {
	if s.known == nil { // the first list
		return false
	}
	lastUID := s.known[s.m.ownName()].uid
	return s.rewound || older(version, s.reached) || lastUID != "" && lastUID != ownUID && 2*same <= len(s.known)-1
}
