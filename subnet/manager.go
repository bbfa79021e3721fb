package subnet

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"flannel/pkg/reconcile"
)

// Manager keeps leases in a store: etcd (package subnet/etcd) or the Kubernetes API (subnet/kube). The daemon runs
// WatchConfig, Watch, Hold and Publish each on a goroutine of its own. It calls Acquire before Watch, Hold and Publish,
// and the methods that do not block from its loop (see "Concurrency" in Documentation/architecture.md). Every method
// with a ctx blocks until it is done, ctx ends, or an error is permanent. During an outage of the store it retries, and
// logs the outage once (see Outage). A store that lacks something answers with nothing: the zero value, or the nil
// channel.
type Manager interface {
	// WatchConfig calls changed with the raw network configuration, first and after each change, until ctx ends. It waits
	// for a missing configuration.
	WatchConfig(ctx context.Context, changed func(raw []byte)) error

	// SetJudge sets how leases are validated from now on. Watch passes on all leases that can be read, but those that the
	// Judge refuses decide nothing: not what is retained, not whether our own lease is lost, and not which subnets are
	// free. If it refuses one with ErrOtherConfig, some node uses that lease: its subnet is taken, and it is not one that
	// the store has lost. Before the first call, all leases that can be read are valid. It does not block.
	SetJudge(j Judge)

	// Acquire leases a subnet that fits cfg. want has the public addresses of the families in use, and in Subnet the
	// subnets of the subnet file, if there are any. cfg.Filed may have further ones of that file, which are of another
	// network: a lease of such a subnet with our public address is a former one of this node, and is deleted when a new
	// one is made. Apart from that, Acquire changes nothing that peers already use. It returns the lease as stored, with
	// Backend and Data if the node had published them before. After an error, such as a network without a free subnet, the
	// daemon tries again.
	Acquire(ctx context.Context, cfg Config, want Lease) (Lease, error)

	// Publish writes l, which must have the subnets that Acquire returned, for the other nodes. It writes only what
	// differs from the store. If our lease is missing in the store, Publish does not create it; Hold decides about that.
	Publish(ctx context.Context, l Lease) error

	// Watch calls changed with the set of the other nodes' leases and what changed in it, first when the set is complete,
	// then after each change, until ctx ends. Our own lease is never in it. During an outage the last set stays valid.
	Watch(ctx context.Context, changed func(Set)) error

	// Hold renews the lease in time and restores it when someone else changes it. It returns ErrLost when the lease is
	// lost, with which the daemon ends; ErrMoved when the node has been assigned another subnet, with which the daemon
	// begins with Acquire again; and nil when ctx ends.
	Hold(ctx context.Context) error

	// AcceptWithdrawal removes the retained leases (see Retained) from the set of Watch, and returns their number. If our
	// own lease was withdrawn with them, it is lost then. An operator causes the call: flanneld accept-withdrawal.
	AcceptWithdrawal() int

	// ConfigMissing returns what keeps WatchConfig from having a configuration and how to provide it; nil: that is not
	// known, or nothing is missing. It does not block.
	ConfigMissing() error

	// Redial closes every connection to the store. A connection from an address that this node no longer has is dead,
	// which otherwise is detected only by a timeout. Interrupted requests are retried over new connections. It does not
	// block.
	Redial()

	// Expires returns when the lease ends, if the store does not answer until then; the zero Time if it is not known yet,
	// or never ends.
	Expires() time.Time

	// PublicIPs returns the public addresses that an operator has set in the store. V4 and V6 have the effect of
	// --public-ip and --public-ipv6, also on the choice of the interface, and override these flags. While Hold
	// runs, it returns at once what Hold has seen; otherwise it reads the store, and waits for it. The zero PublicIPs: none
	// are set, or the store has no such setting.
	PublicIPs(ctx context.Context) (PublicIPs, error)
	// PublicIPsChanged receives a value when Hold has seen that the PublicIPs changed. The nil channel, from which nothing
	// is ever received: the store has no such setting.
	PublicIPsChanged() <-chan struct{}

	// NodeName returns the name of this node in the Kubernetes cluster to whose nodes the leases belong; "": it is not
	// known yet, or the store is not Kubernetes.
	NodeName() string

	// Report reports the state of this node's network to the cluster. The slices of r are not kept. This method and the
	// next one do not block, and do nothing if the store is not that of a cluster.
	Report(r Report)
	// ReportUnreachable takes the names of the leases of all peers that have been unreachable for some time. The slice is
	// not kept.
	ReportUnreachable(peers []string)
}

// Report is what the nodes of a cluster, and its operators, need to know about this node. The loop makes one after each
// pass, and joining one for each reason to wait.
type Report struct {
	Problem       error      // why this node's network is not up to date; nil: it is
	Rejects       []Rejected // peers
	Advice        string     // what the operator should change although the network is synced; "": nothing
	PendingConfig string     // why the latest network configuration is not in force; "": it is
	LostPods      []string   // the names of all running pods of this node that have lost their network
}

// ErrLost means that the node's lease was revoked: another node may get the addresses of its pods.
var ErrLost = errors.New("subnet lease lost")

// ErrMoved means that the node was assigned another subnet, which Acquire returns.
var ErrMoved = errors.New("subnet of the node changed")

// Set is the content of the store without our own lease.
type Set struct {
	Leases []*Lease // in the order of Compare; those that the Judge refuses, too
	// Changes is the difference of Leases to those of the previous Set. Those of the first Set mean nothing.
	Changes []reconcile.Change[Lease]
	Rejects []Rejected // the entries that could not be read as a lease, and refused leases in the place of retained ones
	Windows string     // the first name of a node that runs Windows, with a lease or without; "": none is known

	Retained     []*Retained // those of Leases that the store has lost, in the same order
	OwnWithdrawn bool        // the store has lost our own lease, too, which will be restored
	OwnMissing   error       // why the store cannot tell other nodes of this one, such as a deleted Node; nil: it can
}

// Retained is a lease that the store has lost, probably by mistake, and that stays in use until a time: traffic to its
// node continues (see package peerset). It is never modified.
type Retained struct {
	Lease *Lease
	Cause Cause
	Until time.Time
}

// Cause is why a lease is retained.
type Cause string

const (
	// MassWithdrawal: it was withdrawn together with so many others that this probably was a mistake.
	MassWithdrawal Cause = "mass-withdrawal"
	// StoreReplaced: the store was replaced by another or an older one, which lacks it.
	StoreReplaced Cause = "store-replaced"
	// MissingAtStart: when the daemon started, the system had routes to it, but the store lacked it and many others.
	MissingAtStart Cause = "missing-at-start"
)

// IsMass reports whether so many withdrawn peers, while so many are present, are a mass
// withdrawal: more than three, and more than 20 % of both together, which is more than a
// cluster loses in normal operation. The set of peers asks it for the leases that the store
// loses (MassWithdrawal), and the daemon for those that are missing at a start (MissingAtStart).
// All withdrawals of the retention time count, and not only those of one event, because a
// command that deletes all nodes deletes one after the other.
func IsMass(withdrawn, present int) bool {
	return withdrawn > 3 && withdrawn*5 > withdrawn+present
}

// Rejected is a peer that is ignored, and why.
type Rejected struct {
	Name   string // the etcd key or node name
	Reason string // one sentence, of bounded length
	Local  bool   // the reason lies in this node: others may accept the peer
}

// PublicIPs are public addresses that an operator has set. The zero Addr: not set.
type PublicIPs struct {
	V4, V6 netip.Addr
	// Overwritten4 and Overwritten6 mean that the operator wants peers to get another address of the family than the one
	// in the lease. Publish replaces the address in what it writes, from the first call after PublicIPs has returned this.
	// That call must come even if the lease is the same.
	Overwritten4, Overwritten6 bool
}
