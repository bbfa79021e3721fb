// This file has what several backends share.

package backend

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// underlayDevice returns the underlay for Backend.Devices.
func (n Node) underlayDevice() dataplane.Device {
	return dataplane.Device{Name: n.Underlay.Name, Kind: dataplane.Existing{}}
}

// plain implements Backend without a tunnel, except for Paths and Wire: its only device is
// the underlay, peers need nothing more than a lease's addresses, and nothing keeps Windows
// nodes out. Backends embed it, also those with a tunnel, and replace what differs.
type plain struct {
	Node
	Name string // of the Kind
}

// Devices implements Backend.
func (p plain) Devices(subnet.Lease) []dataplane.Device {
	return []dataplane.Device{p.underlayDevice()}
}

// Describe implements Backend.
func (p plain) Describe(local subnet.Lease, _ dataplane.Links) (subnet.Lease, error) {
	local.Backend = p.Name
	local.V4.Data, local.V6.Data = nil, nil
	return local, nil
}

// MTU implements Backend.
func (p plain) MTU() int { return p.Underlay.MTU }

// ForWindows implements Backend.
func (plain) ForWindows() string { return "" }

// Ends implements Backend.
func (plain) Ends(*subnet.Lease) ([]*dataplane.Path, error) { return nil, nil }

// Derived implements Backend.
func (plain) Derived(*dataplane.Path) bool { return false }

// ErrOffLink is wrapped by the error of a path without a tunnel if the peer is not on the
// same link; its text is the end of that error's. Package plan accepts such a lease where
// another node may be on the peer's link (subnet.Judge.Elsewhere).
var ErrOffLink = errors.New("a path without a tunnel needs that")

// direct returns a path to a peer's subnet without a tunnel. The error means that the peer
// cannot be reached like that: with host-gw it is rejected, others use their tunnel.
func (n Node) direct(e subnet.Endpoint) (*dataplane.Path, error) {
	if !n.Underlay.Reaches(e.PublicIP) {
		return nil, fmt.Errorf("its public IP %s is not on the link of %s (%v), and %w",
			e.PublicIP, n.Underlay.Name, n.Underlay.OnLink, ErrOffLink)
	}
	for _, p := range n.Underlay.OnLink { // networks that need no gateway
		// A /31 or a /32 has no such addresses. The last address has its successor outside.
		if p.Addr().Is4() && p.Bits() < 31 && p.Contains(e.PublicIP) && (e.PublicIP == p.Addr() || !p.Contains(e.PublicIP.Next())) {
			return nil, fmt.Errorf("its public IP %s is the network's own or the broadcast address of %s, which no node has", e.PublicIP, p)
		}
	}
	return &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: n.Underlay.Name, Encap: dataplane.Direct{}}, nil
}

// fitMTU returns an error if packets of outer bytes leave pods less than a family needs
// after the headers of a tunnel, which have overhead bytes. outer is the MTU of the
// underlay, or a smaller Backend.MTU; the error names the one that has to be raised. tunnel
// is a name for the message. v6 says that IPv6 packets have to fit.
func (n Node) fitMTU(outer int, tunnel string, overhead int, v6 bool) error {
	least := dataplane.MinMTU(v6)
	if outer-overhead >= least {
		return nil
	}
	if n.Underlay.MTU < least+overhead {
		return fmt.Errorf("the MTU of %s is %d, which leaves %d for pods after %s's %d; at least %d is needed, so raise the MTU of %s to %d or more, or choose another interface (--iface)",
			n.Underlay.Name, n.Underlay.MTU, n.Underlay.MTU-overhead, tunnel, overhead, least, n.Underlay.Name, least+overhead)
	}
	return fmt.Errorf("Backend.MTU: %d on %s leaves %d for pods after %s's %d; at least %d is needed, so use %d or more",
		outer, n.Underlay.Name, outer-overhead, tunnel, overhead, least, least+overhead)
}

// outerMTU returns the MTU of the packets of a tunnel in bytes: configured (Backend.MTU) if it is set and fits, else that of
// the underlay. One above that is only a warning, because one configuration serves nodes whose underlays may have different MTUs.
func (n Node) outerMTU(configured int) (mtu int, warnings []string) {
	if configured > n.Underlay.MTU {
		warnings = append(warnings, fmt.Sprintf("Backend.MTU: %d is above the MTU of %s; using its %d", configured, n.Underlay.Name, n.Underlay.MTU))
	}
	return min(cmp.Or(configured, n.Underlay.MTU), n.Underlay.MTU), warnings
}

// uses reports whether the node uses an address family: IPv6, or without v6 IPv4.
func (n Node) uses(v6 bool) bool { return v6 && n.V6 || !v6 && n.V4 }

// shared yields a peer's endpoints in the address families that this node uses, IPv4 first.
// Backends call it with this node's own lease, too.
func (n Node) shared(peer *subnet.Lease) iter.Seq[subnet.Endpoint] {
	return func(yield func(subnet.Endpoint) bool) {
		for _, e := range peer.Endpoints() {
			if n.uses(e.Subnet.Addr().Is6()) && !yield(e) {
				return
			}
		}
	}
}

// networkName parses the name of the HNS network (Windows), the key Name; def is the default.
func networkName(o *conf.Object, def string) string {
	name := o.String("Name", def)
	if name == "" {
		return def
	}
	if len(name) > maxNetworkName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		o.Problem("Name", "%.40q cannot be a network's name; use up to %d letters, digits and dots", name, maxNetworkName)
		return def
	}
	return name
}

// maxNetworkName is the limit in bytes. "vEthernet (<name>)" must fit into the name
// of a network adapter, for which IF_MAX_STRING_SIZE is 256.
const maxNetworkName = 200
