// This file is the vxlan backend. It makes one tunnel device for each address
// family, and for each peer a path through it: to the peer's subnet, via its address
// on the underlay and the MAC address of its VTEP (VXLAN tunnel endpoint, the device),
// which the peer publishes in its lease. Package linux (pkg/linux) shows the entries
// of the kernel for such a path.

package backend

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// vxlanOptions are those of the configuration's Backend object.
type vxlanOptions struct {
	vni           int
	port          int             // UDP; 0: the system's default (vxlan_mixed.go), vxlanLinuxPort or vxlanWindowsPort
	mtu           int             // bytes, of the outer interface; 0: that of the underlay
	gbp           bool            // Group Based Policy: the VXLAN header carries the packet's mark
	learning      bool            // the kernel also learns FDB entries from packets; ours suffice
	directRouting bool            // no tunnel to peers on the same link
	overlay       *overlayOptions // on Windows; nil on Linux
}

const (
	maxVNI        = 1<<24 - 1 // RFC 7348: 24 bits
	maxDeviceName = 15        // of a network device, in bytes: IFNAMSIZ of linux/if.h without the final zero
)

// parseVXLAN implements Kind.Parse. What Windows supports is in vxlan_mixed.go (leastVSID).
func parseVXLAN(o *conf.Object, os string) Maker {
	vni := 1
	if os == "windows" {
		vni = leastVSID
	}
	opts := vxlanOptions{
		vni:           o.Int("VNI", vni, 1, maxVNI),
		port:          o.Int("Port", 0, 0, 65535),
		mtu:           o.Int("MTU", 0, 0, 65535),
		gbp:           o.Bool("GBP", false),
		learning:      o.Bool("Learning", false),
		directRouting: o.Bool("DirectRouting", false),
	}
	if os == "windows" {
		parseOverlay(o, &opts)
	} else {
		o.Ignore("MacPrefix", "Name")
	}
	if least := dataplane.MinMTU(false) + vxlanOverhead(false); opts.mtu > 0 && opts.mtu < least {
		o.Problem("MTU", "%d leaves less than %d for pods after VXLAN's %d; use %d or more", opts.mtu, dataplane.MinMTU(false), vxlanOverhead(false), least)
	}
	return func(n Node) (Backend, []string, error) { return newVXLAN(opts, n) }
}

// vxlanOverhead returns the bytes that VXLAN adds to a packet; v6 says that the outer header is IPv6.
func vxlanOverhead(v6 bool) int { return dataplane.TraitsOf(dataplane.VXLAN{}).Overhead(v6) }

// vxlan is the backend of one node; on Windows, overlay embeds it (vxlan_overlay.go). It is made
// anew when the configuration or the underlay changes.
type vxlan struct {
	vxlanOptions
	plain
	outerMTU int // bytes, see Node.outerMTU

	names map[bool]string // of the devices: for IPv4 (false) and IPv6 (true); on Windows that of the HNS network
}

// newVXLAN fits the options to the node.
func newVXLAN(o vxlanOptions, n Node) (Backend, []string, error) {
	outerMTU, warnings := n.outerMTU(o.mtu)
	v := vxlan{vxlanOptions: o, plain: plain{n, "vxlan"}, outerMTU: outerMTU,
		names: map[bool]string{false: vxlanDeviceName(o.vni, false), true: vxlanDeviceName(o.vni, true)}}
	for _, v6 := range []bool{false, true} {
		name := v.names[v6]
		if !n.uses(v6) {
			continue
		}
		if o.overlay == nil && len(name) > maxDeviceName {
			return nil, nil, fmt.Errorf("Backend.VNI: %d makes the device %s, and Linux allows names of %d characters; use a VNI of %d digits or fewer",
				o.vni, name, maxDeviceName, maxDeviceName-strings.Index(name, ".")-1)
		}
		if err := n.fitMTU(v.outerMTU, "VXLAN", vxlanOverhead(v6), v6); err != nil {
			return nil, nil, err
		}
	}
	if o.overlay != nil {
		v.names[false] = o.overlay.name
		return overlay{v}, warnings, nil
	}
	return v, warnings, nil
}

// Wire names all that two VTEPs must agree on to reach each other. Other options,
// such as Learning and MTU, may differ between them. One hop is left for the peer's
// kernel, because the tunnel counts as none.
func (v vxlan) Wire() Wire {
	port := vxlanLinuxPort
	if v.overlay != nil {
		port = vxlanWindowsPort
	}
	name := fmt.Sprintf("vxlan, VNI %d, port %d", v.vni, cmp.Or(v.port, port))
	if v.gbp { // a kernel that does not expect its flag drops the packet
		name += ", GBP"
	}
	return Wire{Name: name, Paths: true, Echo: true, Hops: 1}
}

// MTU implements Backend. In dual-stack, pods have one MTU for both
// families, and the outer IPv6 header is the longer one. On an underlay with an MTU
// of 1500 it is 1450, with IPv6 1430.
func (v vxlan) MTU() int { return v.outerMTU - vxlanOverhead(v.V6) }

// vxlanDeviceName is the name of a tunnel device on Linux.
func vxlanDeviceName(vni int, v6 bool) string {
	if v6 {
		return fmt.Sprintf("flannel-v6.%d", vni)
	}
	return fmt.Sprintf("flannel.%d", vni)
}

// Devices implements Backend. The address of a tunnel device is the base
// address of this node's subnet, such as 10.244.2.0/32, which no pod gets. Peers
// use it as the gateway, and it is the source of the host's own packets to pods.
func (v vxlan) Devices(local subnet.Lease) []dataplane.Device {
	devices := []dataplane.Device{v.underlayDevice()}
	for e := range v.shared(&local) {
		base := e.Subnet.Addr()
		source := v.Underlay.V4
		if base.Is6() {
			source = v.Underlay.V6
		}
		name := v.names[base.Is6()]
		devices = append(devices, dataplane.Device{
			Name: name, MAC: v.derivedMAC(e.Subnet), Kind: dataplane.VXLAN{
				Tunnel: dataplane.Tunnel{
					MTU:    v.outerMTU - vxlanOverhead(base.Is6()),
					Addr:   []netip.Prefix{netip.PrefixFrom(base, base.BitLen())},
					Parent: v.Underlay.Name, Local: source,
				},
				VNI: uint32(v.vni), Port: uint16(v.port), Learning: v.learning, GBP: v.gbp,
			},
		})
	}
	return devices
}

// derivedMAC returns the MAC address of a new device. It depends only on the name of
// the device on Linux and on the subnet. Therefore
//   - a device that is created again has the same address, which the peers know;
//   - cloned machines have different addresses, since they have different leases;
//   - every node can compute it, and reject a peer that claims it without the lease.
//
// The result must never change: nodes of different versions form one network.
func (v vxlan) derivedMAC(s netip.Prefix) dataplane.MAC {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", vxlanDeviceName(v.vni, s.Addr().Is6()), s))
	mac := dataplane.MAC(sum[:6])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}

// Derived implements Backend. It returns false for Windows nodes, whose MAC
// addresses HNS chooses, and for a path without a tunnel (DirectRouting).
func (v vxlan) Derived(end *dataplane.Path) bool {
	e, tunnelled := end.End()
	return tunnelled && e.MAC == v.derivedMAC(end.Dst)
}

// vxlanData is what a node publishes about its VTEP, in flannel's format:
//
//	{"VNI":1,"VtepMAC":"02:00:00:00:00:03"}
//
// Sources, which flannel ignores, are the addresses from which the VTEP sends beside
// the public IP.
type vxlanData struct {
	VNI     uint32 // of a peer, 0: an old lease without it
	VtepMAC string
	Sources []netip.Addr `json:",omitempty"`
}

// Describe implements Backend. The published MAC address is that of the
// actual device, which need not be the derived one: a device from an earlier run,
// or one that flannel made, keeps its own. links has the devices by name.
func (v vxlan) Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error) {
	local, _ = v.plain.Describe(local, links) // never fails, and leaves Data empty
	for _, e := range []*subnet.Endpoint{&local.V4, &local.V6} {
		if !e.On() {
			continue
		}
		name := v.names[e.Subnet.Addr().Is6()]
		link, ok := links[name]
		if !ok {
			return local, fmt.Errorf("describe the lease: device %s does not exist", name)
		}
		d := vxlanData{VNI: uint32(v.vni), VtepMAC: link.MAC.String()}
		for _, a := range v.Sources {
			if a.Is6() == e.Subnet.Addr().Is6() {
				d.Sources = append(d.Sources, a)
			}
		}
		e.Data, _ = json.Marshal(d) // it never fails for such a struct
	}
	return local, nil
}

// Paths implements Backend.
func (v vxlan) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	return v.paths(peer, v.directRouting)
}

// Ends implements Backend.
func (v vxlan) Ends(peer *subnet.Lease) ([]*dataplane.Path, error) { return v.paths(peer, false) }

// paths returns the paths to a peer. With direct (DirectRouting), the paths to a peer on
// our link have no tunnel.
func (v vxlan) paths(peer *subnet.Lease, direct bool) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range v.shared(peer) {
		if direct { // an error means that the peer is not on our link: tunnel to it
			if path, err := v.direct(e); err == nil {
				paths = append(paths, path)
				continue
			}
		}
		end, sources, err := v.vtep(e.Data)
		if err != nil {
			return nil, err
		}
		paths = append(paths, &dataplane.Path{
			Dst: e.Subnet, Via: e.PublicIP, Device: v.names[e.Subnet.Addr().Is6()], Encap: dataplane.VTEP{MAC: end},
			Sources: dataplane.SourcesOf(sources...),
		})
	}
	return paths, nil
}

// vtep returns the MAC address and the sources in a peer's lease data; package plan
// validates the sources. Old leases have no VNI, which counts as ours. An error is the
// reason why the peer is rejected.
func (v vxlan) vtep(raw json.RawMessage) (end dataplane.MAC, sources []netip.Addr, err error) {
	var d vxlanData
	if len(raw) == 0 {
		return dataplane.MAC{}, nil, fmt.Errorf("its lease has no backend data, so its VTEP is unknown")
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return dataplane.MAC{}, nil, fmt.Errorf("its backend data is not %s: %.80q", `{"VNI":…,"VtepMAC":"…"}`, raw)
	}
	end, err = dataplane.ParseMAC(d.VtepMAC)
	if err != nil {
		return dataplane.MAC{}, nil, fmt.Errorf("its VtepMAC %w", err)
	}
	if !end.Unicast() {
		return dataplane.MAC{}, nil, fmt.Errorf("its VtepMAC %s is not a unicast address", end)
	}
	if d.VNI != 0 && d.VNI != uint32(v.vni) { // at the end: all else about the lease is valid
		return dataplane.MAC{}, nil, fmt.Errorf("its VNI is %d and ours is %d; %w", d.VNI, v.vni, subnet.ErrOtherConfig)
	}
	return end, d.Sources, nil
}
