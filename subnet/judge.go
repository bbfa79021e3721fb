package subnet

import "errors"

// Judge validates leases as one node does. A lease is foreign input: anyone who can write to the store can write one. So
// everything that is decided about other leases is decided from those that a Judge accepts. A Judge is never modified, and
// may be used concurrently.
type Judge interface {
	// Check returns why the node cannot use a lease, whatever other leases there are; nil: it can. If the owner has not
	// published yet how to reach it, the error is ErrPending. If the owner can have another configuration, and all else
	// about the lease is valid, the error is ErrOtherConfig.
	Check(l *Lease) error
	// Losers returns those of the leases that the node does not use because of the others, and those that it refuses anyway.
	Losers(leases []*Lease) map[*Lease]bool
	// Elsewhere returns the Judge of a node that has neither subnets nor addresses, for a question about this node's own
	// lease. That node may be on another link.
	Elsewhere() Judge
}

// ErrPending is what Check returns for a lease whose owner has reserved its subnet only.
var ErrPending = errors.New("its owner has not published yet how to reach it")

// ErrOtherConfig is what Check returns for a lease that a node with another network configuration publishes: of another
// backend, or with other settings that nodes must have in common. Such a lease is in use, by the nodes that have the same
// configuration. While a disruptive configuration is rolled out, these are other nodes with each step.
var ErrOtherConfig = errors.New("all nodes must have the same")

// Trusting is the Judge that accepts every lease.
type Trusting struct{}

// Check implements Judge.
func (Trusting) Check(*Lease) error { return nil }

// Losers implements Judge.
func (Trusting) Losers([]*Lease) map[*Lease]bool { return nil }

// Elsewhere implements Judge.
func (t Trusting) Elsewhere() Judge { return t }
