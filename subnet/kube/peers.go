package kube

import (
	"context"
	"errors"

	"flannel/subnet"
	"flannel/subnet/kube/format"
	"flannel/subnet/peerset"
)

// Watch hands over the others' leases; see subnet.Manager.
func (m *Manager) Watch(ctx context.Context, changed func(subnet.Set)) error {
	own := m.ownName()
	p := &peers{set: peerset.NewKeeper(own, m.o.Retain, m.log, func(s subnet.Set) {
		m.teller.retaining(own, s)
		changed(s)
	})}
	defer p.set.Close()
	m.watched.Store(p.set)
	return m.follow(ctx, feed{activity: "watch the nodes", to: p.happened})
}

// AcceptWithdrawal implements subnet.Accepter.
func (m *Manager) AcceptWithdrawal() int {
	if set := m.watched.Load(); set != nil {
		return set.Accept()
	}
	return 0
}

// peers reads Nodes into a set of peers.
type peers struct {
	set   *peerset.Keeper
	begun bool // the first list has come
}

func (p *peers) happened(_ context.Context, changes []change) error {
	all := make([]peerset.Change, 0, len(changes))
	for _, c := range changes {
		all = append(all, peerset.Change{Name: c.name, Entry: read(c.node), Deleted: c.node == nil && !c.replaced})
	}
	if !p.begun {
		p.begun = true
		p.set.ApplyAll(all, false)
		return nil
	}
	p.set.Apply(all, len(changes) > 0 && changes[0].replaced)
	return nil
}

// read makes of a Node what it says; those without a part in the network say nothing. A node that runs Windows is one
// before it has a lease.
func read(n *format.Node) (e peerset.Entry) {
	if n == nil {
		return e
	}
	e.Windows = n.Windows
	l, err := format.LeaseOf(n)
	switch {
	case err == nil:
		e.Lease = l
	case !errors.Is(err, format.ErrNoPeer):
		e.Reject = err.Error()
	}
	return e
}
