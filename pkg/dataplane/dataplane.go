// Package dataplane is the interface to the operating system. The daemon passes devices, and
// paths to the peers' subnets; a driver translates them to entries of the kernel's tables, or
// to HNS. Each operating system has its driver, in the packages linux and windows; this one
// only holds the types.
//
// Also here is what both drivers share and what others have to know of them, all without system
// calls: which paths changed (diff.go), in which order tables are written (fill.go, tables.go),
// which paths refused entries belong to (refused.go), MAC addresses, what has to be known of the kinds
// of tunnels (traits.go), and the parts of the status report that drivers fill (report.go).
package dataplane

import (
	"context"
	"iter"
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/reconcile"
)

// Device is a desired network device.
type Device struct {
	Name      string
	MAC       MAC  // of a new device; an existing one keeps its own. Zero: the system chooses
	Readdress bool // change the MAC address, or the key, of an existing device, too
	Kind      Kind // with the properties of this kind
	// Networks are the pod networks that this node is, or was, in: an existing device
	// whose addresses are all outside belongs to another flanneld. nil: not checked.
	Networks []netip.Prefix
}

// Link is an actual network device.
type Link struct {
	Index int
	MAC   MAC
	MTU   int       // bytes
	Key   PublicKey // of a WireGuard device
	// Output is what PreStartup of Commands printed, without white space around it.
	Output string
}

// Links are the existing devices of the last Ensure by name. A device that is not in them does
// not exist.
type Links map[string]Link

// Path is how packets for a peer's subnet leave this node.
type Path struct {
	Dst    netip.Prefix // the peer's subnet
	Via    netip.Addr   // the peer's address on the underlay
	Device string       // name of a Device given to Ensure
	Encap  Encap        // encapsulation of the packets
	// Sources are further addresses from which the peer's tunnel sends.
	Sources Sources
}

// Sources is a list of addresses. Unlike a slice, it can be compared.
type Sources string

// SourcesOf returns the list of some addresses.
func SourcesOf(addrs ...netip.Addr) Sources {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return Sources(strings.Join(texts, " "))
}

// All yields the addresses.
func (s Sources) All() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for text := range strings.FieldsSeq(string(s)) {
			if a, err := netip.ParseAddr(text); err == nil && !yield(a) {
				return
			}
		}
	}
}

// End returns the tunnel end that the path leads to, if there is one: with host-gw, packets are
// not encapsulated.
func (p *Path) End() (e End, has bool) { return p.Encap.end() }

// State is the desired state apart from the devices. Paths are not modified after
// they are passed to a dataplane. An unchanged path keeps its pointer, so that
// comparing two states is cheap.
type State struct {
	// Networks are the pod networks, one for each address family in use. Packets of
	// these families are forwarded, and routes of flannel into the networks are ours.
	Networks []netip.Prefix
	// Former are pod networks that this node was in before. Our routes into them are
	// deleted.
	Former []netip.Prefix
	// Unrouted means that the backend makes no paths: routes into the networks that
	// do not have our protocol number belong to whoever routes instead.
	Unrouted bool
	// KeepDevices means that others make devices under flannel's names: those that
	// this dataplane did not make stay.
	KeepDevices bool
	Paths       []*Path
	// Since are the Paths of an earlier State, and Changes the differences. A
	// dataplane whose last state had these paths processes only the changes. With
	// another last state, or without Since, it compares.
	Since   []*Path
	Changes []reconcile.Change[Path]
	// Blackholes drop packets that no other route takes, such as those for deleted
	// pods of this node.
	Blackholes []netip.Prefix
	// Subnets are those of this node's pods, one for each address family in use.
	// FormerSubnets are those that this node had before, by the subnet file.
	Subnets, FormerSubnets []netip.Prefix
	// Underlay are this node's own addresses, as prefixes of one address, and the networks
	// that it reaches without a gateway.
	Underlay []netip.Prefix
	// Guard is nil if anybody may send into the pod network.
	Guard *Guard
	// Keep forbids deletions. It is set when something that the state or the links
	// depend on (devices, the underlay) could not be read in this pass, so that the
	// last known value was used.
	Keep bool
}

// Guard says what happens to packets into the pod network that no node and no pod of
// the cluster would send.
type Guard struct {
	Enforce bool           // they are dropped; else they are only counted
	Trial   time.Duration  // for which no packet with the address of a peer's pod must have been counted before any is dropped
	Sources []netip.Prefix // from which peers may send, too, masked
}

// Refused is a path of which the system refused an entry because of its content,
// such as a gateway that is not on the link.
type Refused struct {
	Dst netip.Prefix // as in the path
	Err error
}

// TunnelSummary is about all peers.
type TunnelSummary struct {
	Peers, Connected int   // Connected: with a valid session
	Received, Sent   int64 // bytes, since the summary before
}

// Dataplane reconciles the operating system with a desired state, and notifies of
// changes that somebody else made. Only one goroutine calls its methods, except for those
// that say otherwise. A system that lacks something answers with nothing: the zero value.
type Dataplane interface {
	// Ensure creates and repairs devices and returns the existing ones. It deletes no
	// others. For a device that cannot be read, it returns the last known link, with
	// an error that reconcile.IsUnknown. A device that is not in the links does not
	// exist.
	Ensure(ctx context.Context, devices []Device) (Links, error)
	// Found returns the paths that exist in the system and that this configuration
	// could have made: through the links, into the networks of the state. It changes
	// nothing. Its error is reconcile.Unknown.
	Found(ctx context.Context, links Links, s State) ([]*Path, error)
	// Apply sets what differs from the state, and then deletes entries and devices of
	// ours that are not in it. A refused entry does not stop others, and the next
	// Apply retries it. If the path is the reason, refused contains the path (once),
	// otherwise err contains the entry. With State.Keep, or if something could not be
	// read (reconcile.IsUnknown), nothing is deleted. It also deletes the IPv6 gateways that
	// LeaveSubnets left and whose routes hide that of a path.
	Apply(ctx context.Context, links Links, s State) (refused []Refused, err error)
	// LeaveSubnets deletes the addresses that bridges without pods, which the CNI plugin bridge
	// makes, have as gateways of former subnets of this node. The error is a FormerSubnetError if
	// one has pods and an IPv4 gateway. An IPv6 gateway of a bridge with pods stays until Apply
	// has a path to its subnet. node is the name of this node in Kubernetes, for messages; "":
	// not in Kubernetes.
	LeaveSubnets(former []netip.Prefix, node string) error
	// Changes receives one value after any number of changes by somebody else.
	Changes() <-chan struct{}
	// QueueResync makes the next Ensure and Apply read everything again, instead of
	// relying on notifications.
	QueueResync()
	// Close stops watching. The network stays as it is.
	Close() error

	// Any goroutine may call the methods that follow, at any time. The caller must not change
	// what they return.

	// Guarded returns what the guard of the pod network does; nil: there is none.
	Guarded() *GuardReport
	// Forwarded returns what this process forwarded (TUN) since the Dataplane was made; nil: it
	// has no such device.
	Forwarded() *Forwarded
	// Traffic returns the state of some seconds ago by the peers' subnets, of tunnels that
	// know their peers.
	Traffic() map[netip.Prefix]TunnelReport
	// AwaitHostAddrs returns an error while addresses of the host that an administrator has set
	// are missing and are being restored: what the host has in their place is not to be
	// published. It may do a part of that work.
	AwaitHostAddrs(ctx context.Context) error
	// PodsWithoutEndpoint returns the sorted names of running pods from which the system has
	// taken their network for good.
	PodsWithoutEndpoint() []string
}
