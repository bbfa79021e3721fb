package kube

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"flannel/subnet/kube/format"
)

// relists paces the lists after a lost position. An API server that starts again loses the positions of all daemons at
// once, and a list is the most expensive request that we make: so the daemons spread theirs over a time that grows with
// the cluster, and one that loses its position again and again lists ever more rarely.
type relists struct {
	count int
	last  time.Time
}

const (
	relistMin  = 100 * time.Millisecond
	relistEach = 4 * time.Millisecond // per Node: 20 s among 5,000
	relistMax  = 30 * time.Second
	// relistOver is how long no position must get lost for the next time to count as the first.
	relistOver = 2 * time.Minute
)

// next is the pause before the next list, of that many Nodes.
func (r *relists) next(now time.Time, nodes int) time.Duration {
	if now.Sub(r.last) > relistOver {
		r.count = 0
	}
	d := min(max(relistMin, time.Duration(nodes)*relistEach)<<min(r.count, 10), relistMax)
	r.count++
	r.last = now
	return d/4 + rand.N(d*3/4)
}

// check asks, after a lost connection, whether the store has got as far as we. One that was restored from a backup
// has not, and a watch of it would stay silent until it has; a list of it would be refused.
func (s *follower) check(ctx context.Context) error {
	version, err := s.m.api.StoreVersion(ctx)
	if err != nil {
		return err
	}
	s.broken, s.lagging = false, false
	if older(version, s.reached) {
		s.m.log.Error("the Kubernetes API has an older store than before: reading all of it again", "cause", causeStoreOlder)
		s.floor, s.rewound = version, true
		return errRelist
	}
	return nil
}

// older compares two resourceVersions. Those of different resources may be compared, too.
func older(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

// list reads all. What is missing in it is a change like any other.
func (s *follower) list(ctx context.Context) error {
	var changes []change
	present := map[string]bool{}
	ownUID := ""
	version, err := s.read(ctx, func(n *format.Node) {
		changes = append(changes, change{name: n.Name, node: n})
		present[n.Name] = true
		if n.Name == s.m.ownName() {
			ownUID = n.UID
		}
	})
	if err != nil {
		return err
	}
	replaced := s.replacedBy(version, ownUID)
	lacking := 0
	for name := range s.known {
		if !present[name] {
			changes = append(changes, change{name: name})
			lacking++
		}
	}
	for name := range s.lookups.of {
		if !present[name] && s.known[name].uid == "" {
			delete(s.lookups.of, name) // nobody has heard of it yet
		}
	}
	if s.only != "" && len(changes) == 0 {
		changes = append(changes, change{name: s.only})
	}
	if replaced && s.only == "" {
		s.m.log.Error("the Kubernetes API has another or an older store than before: nodes that it lacks are retained as peers",
			"cause", causeStoreChanged, "missing", lacking, "present", len(present))
	}
	if s.known == nil {
		s.known = make(map[string]known, len(changes))
	}
	admitted := changes[:0]
	for _, c := range changes {
		if c.replaced = replaced; s.admit(c) {
			admitted = append(admitted, c)
		}
	}
	if err := s.hand(ctx, admitted); err != nil {
		return err
	}
	s.moveTo(version)
	s.broken, s.rewound = false, false
	return nil
}

// read reads all Nodes, or the only one.
//
// After a lost position it takes metadata alone, an eighth of the bytes, for the podCIDRs are known by then, and from
// the API server's memory, which costs etcd nothing: anything that is not older than what we had will do. Paging would
// help nobody, for the memory is not paged: the limit is ignored there, or sends the request to etcd.
func (s *follower) read(ctx context.Context, each func(*format.Node)) (version string, err error) {
	switch {
	case s.only != "":
		return s.m.api.Nodes(ctx, s.only, s.floor, each)
	case s.known == nil:
		return s.listFirst(ctx, each)
	}
	return s.m.api.NodesMetadata(ctx, s.floor, each)
}

// replacedBy reports whether a list cannot be of the store that was read before: it is older, or has another Node by
// the name of ours.
func (s *follower) replacedBy(version, ownUID string) bool {
	if s.known == nil {
		return false
	}
	was := s.known[s.m.ownName()].uid
	return s.rewound || older(version, s.reached) || was != "" && was != ownUID
}
