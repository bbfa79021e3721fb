// Package dataplane is the seam to the operating system: what the pods' traffic needs (devices, and paths to the
// peers' subnets) on one side, the kernel's tables or HNS on the other. It holds the types alone; each operating system
// has its driver in a package below.
package dataplane

import (
	"context"
	"net/netip"

	"flannel/pkg/changes"
	"flannel/pkg/mac"
)

// Device is a network device as it shall be.
type Device struct {
	Name      string
	MAC       mac.Addr // for a new device; an existing one keeps its own. Zero: the system chooses
	Readdress bool     // an existing device takes MAC, too
	Kind      Kind     // and what devices of this kind have besides
}

// Link is a device as it is.
type Link struct {
	Index int
	MAC   mac.Addr
	MTU   int // bytes
}

// Links are the devices of the last Ensure by name.
type Links map[string]Link

// Path says how packets for a peer's subnet leave this node.
type Path struct {
	Dst    netip.Prefix // the peer's subnet
	Via    netip.Addr   // the peer's address on the underlay
	Device string       // name of a Device given to Ensure
	Encap  Encap        // and what packets are wrapped in on the way
}

// VTEP returns the MAC address of the tunnel end that the path leads to, if it has such.
func (p *Path) VTEP() (addr mac.Addr, has bool) {
	end, has := p.Encap.(VTEP)
	return end.MAC, has
}

// State is everything that shall be there beside the devices. Paths are never changed once handed over; an unchanged
// one keeps its pointer, so that comparing two states costs next to nothing.
type State struct {
	// Networks are the pod networks, one for each family in use: packets of that family are forwarded, and routes into
	// a network that a flannel left are ours.
	Networks []netip.Prefix
	// Former are networks that this node was in before. What we left of them is deleted.
	Former []netip.Prefix
	// Unrouted says that the backend makes no paths at all: routes into a network that we did not make are those of
	// whoever routes instead.
	Unrouted bool
	Paths    []*Path
	// Since are the Paths of an earlier State, and Changes how Paths differ from them: a dataplane that was told these
	// paths last takes in only the changes. After others, or without Since, it compares.
	Since   []*Path
	Changes []changes.Change[Path]
	// Blackholes swallow what no more specific or better route takes, e.g. packets for pods of ours that are gone.
	Blackholes []netip.Prefix
	// Keep forbids deletions: something that the state or the links follow from (devices, the underlay) could not be
	// read in this pass, and is as it was known before.
	Keep bool
}

// Refused is a path of which the system refuses an entry for what the entry says, e.g. a gateway that is no neighbour.
type Refused struct {
	Dst netip.Prefix // as in the path
	Err error
}

// Dataplane brings the operating system to a state and reports when somebody else changed it.
// One goroutine calls Ensure and Apply.
type Dataplane interface {
	// Ensure makes the devices what they shall be, and returns them as they are. It removes no others. A device that
	// cannot be looked at is returned as it was known before, with an error that reconcile.IsUnknown; one that is
	// missing from the links does not exist.
	Ensure(ctx context.Context, devices []Device) (Links, error)
	// Found returns the paths that the system holds now, of a form that this configuration makes: through the links, into
	// the networks of the state. It changes nothing. Its error is reconcile.Unknown.
	Found(ctx context.Context, links Links, s State) ([]*Path, error)
	// Apply sets what differs from the state, then deletes what is ours beyond it (devices too). An entry that the
	// system refuses stops no other, and is tried again by the next Apply: it is in refused, once for each path, where
	// the path itself is the reason, else in the error. Nothing is deleted with State.Keep, nor if anything could not be
	// read (reconcile.IsUnknown).
	Apply(ctx context.Context, links Links, s State) (refused []Refused, err error)
	// Changes receives a value (of any number of changes) after somebody else changed something of ours.
	Changes() <-chan struct{}
	// Distrust makes the next Ensure and Apply compare with all that is there, not only with what was told to have
	// changed.
	Distrust()
	// Close releases what watching holds; the network stays as it is.
	Close() error
}
