package linux

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// ipip drives the IPIP tunnel. A path is one route. The device has no remote
// address, so that the outer packet goes to the gateway of the route. For the
// peer 10.244.2.0/24 on the host 192.168.0.3:
//
//	route       10.244.2.0/24 via 192.168.0.3 dev flannel.ipip onlink
//
// ipip is a kind: kind_linux.go says when the driver calls its methods.
type ipip struct {
	none
	host
}

// newIPIP returns the kind of IPIP devices.
func newIPIP(h host) kind { return &ipip{host: h} }

func (k *ipip) fill(f *dataplane.Filling, p *dataplane.Path, link dataplane.Link) {
	k.putRoute(f, p.Dst, hop{Via: p.Via, Index: link.Index, Onlink: true})
}

func (*ipip) found(dev dataplane.Device, routes []routeEntry, _ dataplane.State) []*dataplane.Path {
	return pathsOf(routes, func(dst netip.Prefix, h hop) *dataplane.Path {
		if !h.Onlink { // fill makes no such route
			return nil
		}
		return &dataplane.Path{Dst: dst, Via: h.Via, Device: dev.Name, Encap: dataplane.IPInIP{}}
	})
}

func (k *ipip) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	want := dev.Kind.(dataplane.IPIP)
	have, ok := found.(*netlink.Iptun)
	if found != nil && !ok {
		return dataplane.Link{}, fmt.Errorf("there is a device of this name and of type %s, which is not flannel's: delete it", found.Type())
	}
	if have != nil {
		if err := k.checkNetwork(dev, have); err != nil {
			return dataplane.Link{}, err
		}
	}
	// Read everything before deleting anything. The device does not refer to the underlay; without
	// one, the device is neither made nor changed. A Link with an error keeps its paths, the zero Link
	// takes them away (kind.ensure).
	if _, err := k.underlayOf(want.Tunnel); err != nil {
		return linkOf(found), err
	}
	if have != nil && !k.fits(have) {
		k.log.Warn("recreating the device, its properties cannot be changed", "device", dev.Name, "remote", have.Remote, "external", have.FlowBased)
		if err := k.handle.LinkDel(have); err != nil {
			return linkOf(found), fmt.Errorf("delete it to create it again: %w", err)
		}
		have = nil
	}
	if have == nil {
		if err := k.create(dev, want); err != nil {
			return dataplane.Link{}, err
		}
		found, err := k.find(dev.Name)
		if err != nil {
			return dataplane.Link{}, fmt.Errorf("find it after creating it: %w", err)
		}
		if have, ok = found.(*netlink.Iptun); !ok {
			return dataplane.Link{}, errors.New("somebody deleted or replaced it just after its creation")
		}
	}
	return k.linkAfterRepair(have, errors.Join(k.repair(dev, want, have), k.repairTunnel(dev, want.Tunnel, have)))
}

// fits reports whether a device has the right values of those properties that the kernel does
// not change: no remote address, and IPv4 as its only content (or, with the protocol 0, any
// content, as with flannel). FlowBased says that each route has the remote address ("external").
func (k *ipip) fits(l *netlink.Iptun) bool {
	remote := rtnetlink.AddrOf(l.Remote)
	return !l.FlowBased && (!remote.IsValid() || remote.IsUnspecified()) && (l.Proto == unix.IPPROTO_IPIP || l.Proto == 0)
}

// tunnel returns the device as it should be. TTL 0 and TOS 1 mean that the outer packet has
// those of the inner one. The other zero values mean: the outer packet may be fragmented
// (PMtuDisc), there is no further encapsulation in UDP (EncapType), and the route to the peer
// selects the interface (ParentIndex).
func (k *ipip) tunnel(attrs netlink.LinkAttrs, want dataplane.IPIP) *netlink.Iptun {
	return &netlink.Iptun{LinkAttrs: attrs, Local: want.Local.AsSlice(), Tos: tosInherit, Proto: unix.IPPROTO_IPIP}
}

// tosInherit is the value of IFLA_IPTUN_TOS with which the kernel copies the inner
// TOS (ip_tunnel_xmit in net/ipv4/ip_tunnel.c).
const tosInherit = 1

// create creates the device, and explains the usual reason why the kernel refuses it.
func (k *ipip) create(dev dataplane.Device, want dataplane.IPIP) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = dev.Name, want.MTU
	err := k.addDevice(k.tunnel(attrs, want))
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create it with the local address %s: another IPIP device has it and no remote address; delete that device: %w", want.Local, err)
	}
	if err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	k.logDevice("created the device", "device", dev.Name, "mtu", want.MTU, "local", want.Local)
	return nil
}

// repair sets what the kernel can change: the local address, when that of the
// underlay has changed, and what other programs may have set. The device keeps its
// routes.
func (k *ipip) repair(dev dataplane.Device, want dataplane.IPIP, have *netlink.Iptun) error {
	local := rtnetlink.AddrOf(have.Local)
	right := local == want.Local && have.Ttl == 0 && have.Tos == tosInherit && have.PMtuDisc == 0 && have.EncapType == 0 && have.ParentIndex == 0
	if right {
		return nil
	}
	if err := changeIPIP(have.Index, want); err != nil {
		return fmt.Errorf("set its local address to %s: %w", want.Local, err)
	}
	k.logDevice("changed the tunnel", "device", dev.Name, "from", local, "to", want.Local, "underlay", want.Parent)
	return nil
}

// changeIPIP sets the properties of an IPIP device to those of a new one. The netlink
// library would include the name, for which kernels before 6.2 refuse the message with
// EBUSY if the device is up, after they have set the properties.
func changeIPIP(index int, want dataplane.IPIP) error {
	data := rtnetlink.Message(nil).Attr(nl.IFLA_IPTUN_LOCAL, want.Local.AsSlice()).
		Attr(nl.IFLA_IPTUN_TOS, []byte{tosInherit}).Attr(nl.IFLA_IPTUN_PROTO, []byte{unix.IPPROTO_IPIP}).
		Attr(nl.IFLA_IPTUN_PMTUDISC, []byte{0})
	// Without these attributes, the kernel keeps a further encapsulation in UDP that somebody has set.
	for _, encap := range []uint16{nl.IFLA_IPTUN_ENCAP_TYPE, nl.IFLA_IPTUN_ENCAP_FLAGS, nl.IFLA_IPTUN_ENCAP_SPORT, nl.IFLA_IPTUN_ENCAP_DPORT} {
		data = data.Attr(encap, []byte{0, 0})
	}
	return changeTunnel(index, "ipip", data)
}
