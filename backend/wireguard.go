// This file is the wireguard backend (Linux). Each node has one WireGuard device,
// or one for each address family, and publishes its public key and UDP port. A path to a
// peer's subnet is a route to the device, where the peer's key has the subnet among its
// allowed IPs:
//
//	mode       device         carries          underlay
//	separate   flannel-wg     IPv4 pods        IPv4
//	           flannel-wg-v6  IPv6 pods        IPv6
//	ipv4       flannel-wg     all pods         IPv4
//	ipv6       flannel-wg     all pods         IPv6
//	auto       flannel-wg     all pods         chosen for each peer, see choose
//
// The keys in the configuration and their defaults are flannel's, and so is what a node
// publishes, so that nodes with flannel and flanneld reach each other.

package backend

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// The names of the devices, as flannel's.
const (
	wireguardDevice   = "flannel-wg"
	wireguardDeviceV6 = "flannel-wg-v6" // with mode separate
)

// Ports of UDP, which are flannel's defaults.
const (
	wireguardPort   = 51820
	wireguardPortV6 = 51821 // of wireguardDeviceV6
)

// wireguardMode is the value of Mode, as in the table above.
type wireguardMode string

const (
	modeSeparate wireguardMode = "separate"
	modeAuto     wireguardMode = "auto"
	modeIPv4     wireguardMode = "ipv4"
	modeIPv6     wireguardMode = "ipv6"
)

// wireguardModes are all values of Mode.
var wireguardModes = []wireguardMode{modeSeparate, modeAuto, modeIPv4, modeIPv6}

// wireguardOptions are those of the configuration's Backend object.
type wireguardOptions struct {
	port, portV6 int           // UDP
	mtu          int           // bytes, of the outer interface; 0: that of the underlay
	psk          conf.Secret   // 32 bytes; zero: none
	keepalive    time.Duration // between packets that keep a NAT's mapping; 0: none are sent
	mode         wireguardMode
}

// wireguardOverhead is what WireGuard adds to a packet, in bytes. The outer header
// may always be IPv6, whatever the argument says.
var wireguardOverhead = dataplane.TraitsOf(dataplane.WireGuard{}).Overhead(false)

// parseWireGuard implements Kind.Parse.
func parseWireGuard(o *conf.Object, os string) Maker {
	opts := wireguardOptions{
		port:      o.Int("ListenPort", wireguardPort, 1, 65535),
		portV6:    o.Int("ListenPortV6", wireguardPortV6, 1, 65535),
		mtu:       o.Int("MTU", 0, 0, 65535),
		psk:       parsePSK(o),
		keepalive: time.Duration(o.Int("PersistentKeepaliveInterval", 0, 0, 65535)) * time.Second,
		mode:      wireguardMode(o.String("Mode", string(modeSeparate))),
	}
	if !slices.Contains(wireguardModes, opts.mode) {
		o.Problem("Mode", "%.40q is not a mode; use one of %q, in lower case", string(opts.mode), wireguardModes)
	}
	if least := dataplane.MinMTU(false) + wireguardOverhead; opts.mtu > 0 && opts.mtu < least {
		o.Problem("MTU", "%d leaves less than %d for pods after WireGuard's %d; use %d or more", opts.mtu, dataplane.MinMTU(false), wireguardOverhead, least)
	}
	if os == "windows" {
		o.Problem("Type", "wireguard is not supported on Windows; use vxlan or host-gw in a cluster with Windows nodes")
	}
	return func(n Node) (Backend, []string, error) { return newWireGuard(opts, n) }
}

// parsePSK parses the preshared key of all peers, zero if there is none. Its problems do not
// show the value.
func parsePSK(o *conf.Object) conf.Secret {
	text := o.Secret("PSK")
	if text == (conf.Secret{}) {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(text.Reveal())
	if err != nil || len(raw) != 32 || bytes.Count(raw, []byte{0}) == 32 { // zeros mean no key
		o.Problem("PSK", "the value is not a preshared key, which has 32 bytes in base64 (44 characters); create one with: wg genpsk")
		return conf.Secret{}
	}
	return conf.NewSecret(string(raw))
}

// wireguard implements Backend. ForWindows and Derived are those of plain: parseWireGuard refuses
// the backend on Windows, so no option of it could help, and keys never follow from a subnet.
type wireguard struct {
	wireguardOptions
	plain
	outerMTU int // bytes, see Node.outerMTU
}

// newWireGuard returns the backend for a node, and warnings about options without effect. The
// error says what of the options the node cannot have.
func newWireGuard(o wireguardOptions, n Node) (Backend, []string, error) {
	outerMTU, warnings := n.outerMTU(o.mtu)
	w := wireguard{o, plain{n, "wireguard"}, outerMTU}
	if err := n.fitMTU(w.outerMTU, "WireGuard", wireguardOverhead, n.V6); err != nil {
		return nil, nil, err
	}
	switch {
	case o.mode == modeSeparate && n.V4 && n.V6 && o.port == o.portV6:
		return nil, nil, fmt.Errorf("Backend.ListenPortV6: %d is ListenPort, too, and each of the two devices needs its own; use another, or Mode auto, which has one device", o.portV6)
	case o.mode == modeIPv4 && !n.V4:
		return nil, nil, fmt.Errorf("Backend.Mode: ipv4 is possible only if pods have IPv4, too; use auto or ipv6, or set EnableIPv4")
	case o.mode == modeIPv6 && !n.V6:
		return nil, nil, fmt.Errorf("Backend.Mode: ipv6 is possible only if pods have IPv6, too; use auto or ipv4, or set EnableIPv6")
	case o.mode == modeIPv4 && !n.Underlay.V4.IsValid():
		return nil, nil, fmt.Errorf("Backend.Mode: ipv4, and %s has no IPv4 address; use auto or ipv6", n.Underlay.Name)
	case o.mode == modeIPv6 && !n.Underlay.V6.IsValid():
		return nil, nil, fmt.Errorf("Backend.Mode: ipv6, and %s has no usable IPv6 address; use auto or ipv4", n.Underlay.Name)
	}
	return w, warnings, nil
}

// Wire returns a name with a fingerprint of the preshared key, since nodes with
// different ones do not reach each other. The number of devices matters only with IPv6: a
// node with IPv4 only has the same device in each mode. A node with IPv6 only has one device
// in each mode, too, but the port differs with mode separate (see endOfOneDevice). One hop
// is left for the peer's kernel, because the tunnel counts as none.
func (w wireguard) Wire() Wire {
	name := "wireguard"
	if w.V6 {
		name += map[bool]string{true: ", one device per family", false: ", one device"}[w.mode == modeSeparate]
	}
	if w.psk != (conf.Secret{}) {
		name += fmt.Sprintf(", preshared key with fingerprint %x", fingerprint(w.psk))
	}
	return Wire{Name: name, Paths: true, Echo: true, Hops: 1}
}

// fingerprint returns four bytes by which preshared keys are told apart in the log and in
// flanneld status. The prefix makes it useless for other purposes of the key.
func fingerprint(psk conf.Secret) []byte {
	sum := sha256.Sum256([]byte("flannel preshared key\n" + psk.Reveal()))
	return sum[:4]
}

// MTU implements Backend.
func (w wireguard) MTU() int { return w.outerMTU - wireguardOverhead }

// deviceOf returns the name and the port of our device for pods of a family: IPv6, or without
// v6 IPv4.
func (w wireguard) deviceOf(v6 bool) (name string, port int) {
	if v6 && w.mode == modeSeparate {
		return wireguardDeviceV6, w.portV6
	}
	return wireguardDevice, w.port
}

// Devices implements Backend: the underlay, and one device, or one for each family
// of the local lease. Each device has the base address of each subnet that it carries.
func (w wireguard) Devices(local subnet.Lease) []dataplane.Device {
	devices := []dataplane.Device{w.underlayDevice()}
	for e := range w.shared(&local) {
		base := e.Subnet.Addr()
		name, port := w.deviceOf(base.Is6())
		addr := netip.PrefixFrom(base, base.BitLen())
		if last := &devices[len(devices)-1]; last.Name == name { // one device carries both families
			kind := last.Kind.(dataplane.WireGuard)
			kind.Addr = append(kind.Addr, addr)
			last.Kind = kind
			continue
		}
		devices = append(devices, dataplane.Device{Name: name, Kind: dataplane.WireGuard{
			Tunnel: dataplane.Tunnel{MTU: w.MTU(), Addr: []netip.Prefix{addr}, Parent: w.Underlay.Name},
			Port:   uint16(port), PSK: w.psk, Keepalive: w.keepalive,
		}})
	}
	return devices
}

// wireguardData is what a node publishes for each of its families, in flannel's format.
type wireguardData struct {
	PublicKey string // in base64
	Port      uint16 // UDP; 0: not published
}

// Describe implements Backend. For each family it publishes the public key and the
// port of the device that carries the family. The port is the one on which the device
// listens, which is not so with flannel (see endOfOneDevice).
func (w wireguard) Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error) {
	local, _ = w.plain.Describe(local, links) // never fails, and leaves Data empty
	for _, e := range []*subnet.Endpoint{&local.V4, &local.V6} {
		if !e.On() {
			continue
		}
		name, port := w.deviceOf(e.Subnet.Addr().Is6())
		link, ok := links[name]
		if !ok || link.Key == (dataplane.PublicKey{}) {
			return local, fmt.Errorf("describe the lease: device %s does not exist, or has no key yet", name)
		}
		e.Data, _ = json.Marshal(wireguardData{link.Key.Base64(), uint16(port)}) // it never fails for such a struct
	}
	return local, nil
}

// Paths implements Backend.
func (w wireguard) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	shared := slices.Collect(w.shared(peer))   // at most two
	ends := make([]wireguardData, len(shared)) // what the peer publishes for each
	var allowed [2]netip.Prefix                // all subnets of the peer
	for i, e := range shared {
		var err error
		if ends[i], err = parseWireGuardData(e.Data); err != nil {
			return nil, err
		}
		if ends[i].PublicKey != ends[0].PublicKey && w.mode != modeSeparate {
			return nil, fmt.Errorf("it publishes different keys for IPv4 and IPv6, and with Mode %s a node has one; %w", w.mode, subnet.ErrOtherConfig)
		}
		allowed[i] = e.Subnet
	}
	var paths []*dataplane.Path
	for i, e := range shared {
		name, ownPort := w.deviceOf(e.Subnet.Addr().Is6())
		via, end := e.PublicIP, ends[i]
		if w.mode == modeSeparate {
			allowed = [2]netip.Prefix{e.Subnet} // the peer's key is on a device for each family
		} else {
			end = w.endOfOneDevice(shared, ends)
			var err error
			if via, err = w.choose(peer); err != nil {
				return nil, err
			}
		}
		key, _ := dataplane.ParsePublicKey(end.PublicKey) // parseWireGuardData has checked it
		// Without a port in the lease, the peer has ours.
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: via, Device: name, Encap: dataplane.WireGuardPeer{
			Key: key, Endpoint: netip.AddrPortFrom(via, cmp.Or(end.Port, uint16(ownPort))), Allowed: allowed,
		}})
	}
	return paths, nil
}

// endOfOneDevice returns the key and port of a peer's only device, in the modes other than
// separate. ends are what the peer publishes for each of the shared families, IPv4 first. A
// flannel with one device listens on ListenPort, and yet publishes ListenPortV6 for IPv6. So
// the port for IPv4 counts. For a peer with IPv6 only, our ListenPortV6 in the lease is read
// as our ListenPort. A node with mode separate that listens on our ListenPortV6 publishes
// the same as that flannel, and is not reached.
func (w wireguard) endOfOneDevice(shared []subnet.Endpoint, ends []wireguardData) wireguardData {
	end := ends[0]
	if shared[0].Subnet.Addr().Is6() && int(end.Port) == w.portV6 {
		end.Port = uint16(w.port)
	}
	return end
}

// Ends implements Backend: all paths are through the tunnel.
func (w wireguard) Ends(peer *subnet.Lease) ([]*dataplane.Path, error) { return w.Paths(peer) }

// parseWireGuardData parses what a peer published for a family. An error is the reason
// why the peer is rejected.
func parseWireGuardData(raw json.RawMessage) (d wireguardData, err error) {
	if len(raw) == 0 {
		return d, fmt.Errorf("its lease has no backend data, so its key is unknown")
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return d, fmt.Errorf("its backend data is not %s: %.80q", `{"PublicKey":"…","Port":…}`, raw)
	}
	if _, err := dataplane.ParsePublicKey(d.PublicKey); err != nil {
		return d, fmt.Errorf("its PublicKey: %w", err)
	}
	return d, nil
}

// choose returns the address at which the one device reaches a peer, or why the peer is
// rejected. With mode auto the address is, as with flannel,
//
//	the peer's IPv4 address   if the peer has no IPv6 address, or
//	                          its IPv4 address is not a private one and we have one, too
//	its IPv6 address          if neither that nor ours is a unique local one (fc00::/7)
//	its IPv4 address          otherwise
//
// but never of a family in which the peer or this node has no address. Modes ipv4 and ipv6
// have one family.
func (w wireguard) choose(peer *subnet.Lease) (netip.Addr, error) {
	v4, v6 := peer.V4.PublicIP, peer.V6.PublicIP
	can4 := v4.IsValid() && w.Underlay.V4.IsValid() && w.mode != modeIPv6
	can6 := v6.IsValid() && w.Underlay.V6.IsValid() && w.mode != modeIPv4
	switch {
	case !can4 && !can6:
		return netip.Addr{}, fmt.Errorf("it has no public address of a family that this node can use with Mode %s", w.mode)
	case !can6:
		return v4, nil
	case !can4:
		return v6, nil
	case v4.IsPrivate() && !v6.IsPrivate() && !w.Underlay.PublicV6.IsPrivate():
		return v6, nil
	}
	return v4, nil
}
