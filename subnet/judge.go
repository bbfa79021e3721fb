package subnet

import "errors"

// Judge validates leases as one node does. A lease is foreign input: anyone who can write to the store can write one.
// So a Manager, which decides which leases are lost and which subnets are free, counts only leases that a Judge
// accepts. The rules are in package plan, which makes the Judge of a node; the daemon passes it to Manager.SetJudge. A
// Judge is never modified, and may be used concurrently.
type Judge interface {
	// Check returns why the node cannot use a lease, whatever other leases there are; nil: it can. If the owner has not
	// published yet how to reach it, the error is ErrPending. If the owner can have another configuration, and all else
	// about the lease is valid, the error wraps ErrOtherConfig.
	Check(l *Lease) error
	// Losers returns those of the leases that the node does not use because of the others, such as a younger one of two
	// with the same subnet, and those that it refuses anyway (see Check).
	Losers(leases []*Lease) map[*Lease]bool
	// Elsewhere returns the Judge of another node, which has neither subnets nor addresses and may be on any link. It
	// is for questions about this node's own lease, or about leases with this node's subnets, which this node's Judge
	// refuses.
	Elsewhere() Judge
}

// ErrPending is what Check returns for a lease whose owner (the node that it is for) has reserved its subnet only.
var ErrPending = errors.New("its owner has not published yet how to reach it")

// ErrOtherConfig is what the error of Check wraps for a lease that a node with another network configuration publishes:
// of another backend, or with other settings that nodes must have in common. Such a lease is in use, by the nodes that
// have the same configuration. While a disruptive configuration is rolled out, more nodes have it with each step.
var ErrOtherConfig = errors.New("all nodes must have the same")

// Trusting is the Judge that accepts every lease, before the daemon knows the rules.
type Trusting struct{}

// Check implements Judge.
func (Trusting) Check(*Lease) error { return nil }

// Losers implements Judge.
func (Trusting) Losers([]*Lease) map[*Lease]bool { return nil }

// Elsewhere implements Judge.
func (t Trusting) Elsewhere() Judge { return t }
