package subnet

import "errors"

// Judge validates leases as one node does. A lease is foreign input: anyone who can write to the store can write one. So
// everything that is decided about other leases is decided from those that a Judge accepts. A Judge is never modified, and
// may be used concurrently.
type Judge interface {
	// Check returns why the node cannot use a lease, whatever other leases there are; nil: it can. If the owner has not
	// published yet how to reach it, the error is ErrPending.
	Check(l *Lease) error
	// Losers returns those of the leases that the node does not use because of the others, and those that it refuses anyway.
	Losers(leases []*Lease) map[*Lease]bool
	// Elsewhere returns the Judge of a node that has neither subnets nor addresses, for a question about this node's own
	// lease.
	Elsewhere() Judge
}

// ErrPending is what Check returns for a lease whose owner has reserved its subnet only.
var ErrPending = errors.New("its owner has not published yet how to reach it")

// Trusting is the Judge that accepts every lease.
type Trusting struct{}

// Check implements Judge.
func (Trusting) Check(*Lease) error { return nil }

// Losers implements Judge.
func (Trusting) Losers([]*Lease) map[*Lease]bool { return nil }

// Elsewhere implements Judge.
func (t Trusting) Elsewhere() Judge { return t }
