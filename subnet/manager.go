package subnet

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"flannel/pkg/changes"
)

// Manager is where leases live: etcd or the Kubernetes API. Every method blocks until it is done, ctx ends, or
// waiting cannot help; an outage of the store is waited out, and said in the log once.
type Manager interface {
	// WatchConfig hands over the raw network configuration, now and whenever it changes, until ctx ends.
	// A configuration that is missing is waited for.
	WatchConfig(ctx context.Context, changed func(raw []byte)) error

	// Acquire claims a subnet that fits cfg. want carries the public addresses (of the families in use), and in
	// Subnet what the subnet file remembers, if anything. It returns the lease as the store has it: Name and Since as
	// the others see them, Backend and Data if the node had described itself before. Nothing that peers already see is
	// changed.
	Acquire(ctx context.Context, cfg Config, want Lease) (Lease, error)

	// Publish makes the others see l, whose subnets are those of Acquire. It writes only what differs. While our lease
	// is missing in the store, Hold writes it, if it is put back.
	Publish(ctx context.Context, l Lease) error

	// Watch hands over the whole set of the others' leases, and what changed in it, first when it is complete, then
	// after each change, until ctx ends. Our own lease is never in it. An outage changes nothing: the last set stands.
	Watch(ctx context.Context, changed func(Set)) error

	// Hold keeps the claim: renews it in time and puts back what another hand did to it. It returns ErrLost when
	// the claim is gone, ErrMoved when the node has been given another subnet, and nil when ctx ends.
	Hold(ctx context.Context) error
}

// ErrLost says that the node's lease was revoked: its pods' addresses may be given to others.
var ErrLost = errors.New("subnet lease lost")

// ErrMoved says that the node has another subnet now, which Acquire will return.
var ErrMoved = errors.New("the node's subnet is another one")

// Set is what the store holds beside our own lease.
type Set struct {
	Leases []*Lease // in the order of Compare
	// Changes are how Leases differ from those of the Set that was handed over before. The first Set has none: all of
	// it is new.
	Changes []changes.Change[Lease]
	Rejects []Rejected // what could not be read as a lease at all
	Windows string     // the first node, by name, that runs Windows, with a lease or not yet; "": none is known

	Retained     []*Retained // those of Leases that the store no longer has, in the same order
	OwnWithdrawn bool        // nor has it our own, which is about to be put back
}

// Retained is a lease that the store no longer has, and that stays in use for a while. It is never changed.
type Retained struct {
	Lease *Lease
	Cause Cause
	Until time.Time
}

// Cause is why a lease is retained.
type Cause string

const (
	// MassWithdrawal: it was withdrawn together with so many others that nobody may have meant it.
	MassWithdrawal Cause = "mass-withdrawal"
	// StoreReplaced: it is missing in a store that replaced the one that had it.
	StoreReplaced Cause = "store-replaced"
	// MissingAtStart: the system still has what leads to it, and the store that the daemon found at its start does not
	// have it, nor many others.
	MissingAtStart Cause = "missing-at-start"
)

// Accepter is a Manager that retains leases.
type Accepter interface {
	// AcceptWithdrawal lets the retained leases go at once and returns how many they were. Our own lease, if it was
	// withdrawn too, is lost then.
	AcceptWithdrawal() int
}

// Rejected is a peer that is left out, and why.
type Rejected struct {
	Name   string // the etcd key or node name
	Reason string // one sentence; never quotes more than a bounded part of the foreign value
	Local  bool   // it follows from what this node has: others may not reject the peer
}

// Reporter is a Manager that tells the cluster how this node's network is.
type Reporter interface {
	// Report takes the outcome of a pass: what is not in step (nil: nothing), the peers that are left out, of which
	// the slice is not kept, and what the operator should change although it is in step ("": nothing). It does not block.
	Report(problem error, rejects []Rejected, advice string)
}

// Redialer is a Manager that can drop its connections. Those from an address that this node no longer has lead nowhere,
// which else comes out by a timeout only.
type Redialer interface {
	// Redial closes every connection to the store; what was under way is tried again over new ones. It does not block.
	Redial()
}

// PublicIPs are addresses that an operator wants the others to be told; a zero one: not said.
type PublicIPs struct{ V4, V6 netip.Addr }

// Addresser is a Manager in which an operator can set this node's public addresses. They count as if given by
// --public-ip and --public-ipv6, the choice of the interface included, and beat these flags.
type Addresser interface {
	// PublicIPs returns what the operator has set. Before Acquire it asks the store and waits for the answer; while Hold
	// runs it returns at once.
	PublicIPs(ctx context.Context) (PublicIPs, error)
	// PublicIPsChanged receives a value when Hold has learnt of other ones.
	PublicIPsChanged() <-chan struct{}
}
