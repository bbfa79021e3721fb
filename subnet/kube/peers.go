package kube

import (
	"context"
	"errors"

	"flannel/subnet"
	"flannel/subnet/peerset"
)

// Watch implements subnet.Manager. The Keeper calls the function below with each new set, one call at a time, on the
// goroutine that has changed the set: this one, Hold's, the loop's (SetJudge), AcceptWithdrawal's or that of a timer.
func (m *Manager) Watch(ctx context.Context, changed func(subnet.Set)) error {
	own := m.ownName()
	// true: the cluster assigns the subnets.
	p := &peers{reporter: m.reporter, set: peerset.NewKeeper(own, m.o.Retain, true, m.log, func(s subnet.Set) {
		m.reporter.peersRetained(own, s)
		changed(s)
	})}
	defer p.set.Close()
	m.watched.Follow(p.set)
	m.passOnMissing() // Hold may have seen already that our Node is missing
	return m.follow(ctx, feed{activity: "watch the nodes", handle: p.handle})
}

// SetJudge implements subnet.Manager.
func (m *Manager) SetJudge(j subnet.Judge) { m.watched.SetJudge(j) }

// AcceptWithdrawal implements subnet.Manager. A connection of the status socket calls it.
func (m *Manager) AcceptWithdrawal() int {
	if set := m.watched.Peers(); set != nil {
		return set.Accept()
	}
	return 0
}

// peers is the consumer of the feed of all Nodes: it translates Nodes into changes of a set of peers, from which the set
// removes our own. The goroutine of Watch uses it.
type peers struct {
	set      *peerset.Keeper
	reporter *reporter
	listed   bool // the first list was handed over
}

// handle implements feed.handle. It never ends the feed.
func (p *peers) handle(_ context.Context, changes []change) error {
	translated := make([]peerset.Change, 0, len(changes))
	for _, c := range changes {
		translated = append(translated, peerset.Change{Name: c.name, Entry: read(c.node), Deleted: c.node == nil && !c.replaced})
	}
	if !p.listed {
		p.listed = true
		p.set.ApplyAll(translated, false) // false: no other store was read before
		return nil
	}
	replaced := len(changes) > 0 && changes[0].replaced // the same in all of them
	if replaced {
		p.reporter.nodeChanged() // Hold does not see that the store was restored if kubelet has written our Node since
	}
	p.set.Apply(translated, replaced)
	return nil
}

// read translates a Node. A Node that flannel does not manage has neither lease nor reject; whether it runs Windows is
// recorded even so. nil, a Node that does not exist, becomes the zero Entry.
func read(n *storedNode) (e peerset.Entry) {
	if n == nil {
		return e
	}
	e.Windows = n.Windows
	l, err := leaseOf(n)
	switch {
	case err == nil:
		e.Lease = l
	case !errors.Is(err, errNoPeer):
		e.Reject = err.Error()
	}
	return e
}
