package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// wireguard drives WireGuard devices. A path is one route, and one peer of the device
// with the subnet among its allowed IPs. For the peer 10.244.2.0/24 on the host
// 192.168.0.3:
//
//	route  10.244.2.0/24 dev flannel-wg scope link
//	peer   <public key> endpoint 192.168.0.3:51820 allowed-ips 10.244.2.0/24
//
// All routes without a gateway share one object in the kernel, so they need no nexthop
// objects. For what has no peer, there are further routes; see addNetworkRoutes. flannel
// has one route for the whole network instead, without a metric; it is ours, too, and is
// deleted when there are those of the peers.
//
// The device and its keys stay when flanneld ends, and are only changed where they
// differ from the desired state: sessions continue across restarts. wireguard is a kind:
// kind_linux.go says when the driver calls its methods.
type wireguard struct {
	none
	host
	wg    *wgStore                        // the peers in the kernel or in wireguard-go, and this node's private key
	peers *reconcile.Table[wgKey, wgPeer] // wg is its store
}

// newWireGuard returns the kind of WireGuard devices.
func newWireGuard(h host) kind {
	k := &wireguard{host: h, wg: newWGStore(h.opts.Log, h.opts.KeyFile, h.opts.Tunnels)}
	k.peers = reconcile.NewTable[wgKey, wgPeer](k.wg)
	k.peers.Lapsed = func(p wgPeer) bool { return p.Lapsed }
	k.wg.desired, k.wg.devices = k.peers.Desired, k.names
	return k
}

// tables has the peers before the routes, so that a packet that takes a new route finds one.
func (k *wireguard) tables() (before, after dataplane.Tables) { return dataplane.Tables{k.peers}, nil }

func (k *wireguard) close() error {
	k.wg.close()
	return nil
}

func (k *wireguard) fill(f *dataplane.Filling, p *dataplane.Path, link dataplane.Link) {
	peer := p.Encap.(dataplane.WireGuardPeer)
	value := wgPeer{Endpoint: peer.Endpoint, Allowed: peer.Allowed}
	if dev, ok := k.device(p.Device).Kind.(dataplane.WireGuard); ok { // else it is being dropped: only the key counts
		value.PSK, value.Keepalive = dev.PSK, dev.Keepalive
	}
	dataplane.Put(f, k.peers, wgKey{link.Index, peer.Key}, value)
	dataplane.Put(f, k.routes, routeKey{p.Dst, defaultMetric(p.Dst.Addr())}, hop{Index: link.Index})
}

func (k *wireguard) found(dev dataplane.Device, routes []routeEntry, _ dataplane.State) []*dataplane.Path {
	return pathsOf(routes, func(dst netip.Prefix, h hop) *dataplane.Path {
		owner, ok := k.wg.owners[wgSubnet{h.Index, dst}] // the peer with this allowed IP
		peer, exists := k.peers.Actual(owner)
		if h.Via.IsValid() || !ok || !exists || peer.Unmanaged || !peer.Endpoint.IsValid() { // fill makes no such route or peer
			return nil
		}
		return &dataplane.Path{Dst: dst, Via: peer.Endpoint.Addr(), Device: dev.Name,
			Encap: dataplane.WireGuardPeer{Key: owner.Key, Endpoint: peer.Endpoint, Allowed: peer.Allowed}}
	})
}

func (*wireguard) networkRoutes(want map[routeKey]hop, dev dataplane.Device, link dataplane.Link, s dataplane.State) {
	for _, p := range slices.Concat(s.Subnets, withoutNodes(s)) { // withoutNodes: the networks without a node's address
		ofFamily := func(a netip.Prefix) bool { return a.Addr().Is4() == p.Addr().Is4() }
		if link.Index != 0 && slices.ContainsFunc(dev.Kind.(dataplane.WireGuard).Addr, ofFamily) {
			want[routeKey{p, lastMetric}] = hop{Index: link.Index}
		}
	}
}

// names returns the names of the existing WireGuard devices by index.
func (k *wireguard) names() map[int]string {
	names := map[int]string{}
	for _, dev := range k.desired {
		_, ours := dev.Kind.(dataplane.WireGuard)
		if link, exists := k.ensured[dev.Name]; ours && exists {
			names[link.Index] = dev.Name
		}
	}
	return names
}

func (k *wireguard) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	want := dev.Kind.(dataplane.WireGuard)
	if found != nil && !isOurType(found) {
		return dataplane.Link{}, fmt.Errorf("there is a device of this name and of type %s, which is not flannel's: delete it", found.Type())
	}
	if found != nil {
		if err := k.checkNetwork(dev, found); err != nil {
			return dataplane.Link{}, err
		}
	}
	k.wg.poll(func() { // a goroutine calls it every few seconds; the next pass then compares device and peers
		k.dirty.Store(true)
		k.peers.Relist()
		k.notify()
	})
	if found == nil {
		var err error
		if found, err = k.create(dev.Name); err != nil {
			return dataplane.Link{}, err
		}
	}
	before, err := k.wg.client.device(dev.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return dataplane.Link{}, fmt.Errorf("there is a device of this name and of type %s that is not WireGuard's (delete it: ip link del %s), or the wireguard-go that made it is about to start or end: %w", found.Type(), dev.Name, err)
	}
	if err != nil {
		return k.wg.withKey(linkOf(found)), err
	}
	keyErr := k.loadKey(dev, before) // the key may be known after an error, too: then the device is configured
	if k.wg.private.key == nil {     // so the Link has no public key
		return linkOf(found), keyErr
	}
	err = errors.Join(keyErr, k.configure(dev.Name, want, before))
	if err == nil || !reconcile.IsUnknown(err) { // with no answer of the device, nothing else is changed
		err = errors.Join(err, k.explain(want, k.repairTunnel(dev, want.Tunnel, found)))
	}
	link, err := k.linkAfterRepair(found, err)
	return k.wg.withKey(link), err
}

// explain adds to an error of the kernel what it means: the device takes its UDP port
// when it comes up.
func (k *wireguard) explain(want dataplane.WireGuard, err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is in use by another program; end that, or set another port in Backend: %w", want.Port, err)
	}
	return err
}

// create creates the device in the kernel or, if the kernel has no WireGuard, with
// wireguard-go, which makes a TUN device of that name.
func (k *wireguard) create(name string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := k.handle.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	by := "the kernel"
	if errors.Is(err, unix.EOPNOTSUPP) {
		by = "wireguard-go"
		err = k.wg.startUserspace(name)
	}
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}
	found, err := k.find(name)
	if err != nil {
		return nil, fmt.Errorf("find it after creating it: %w", err)
	}
	if found == nil {
		return nil, errors.New("somebody deleted it just after its creation")
	}
	k.logDevice("created the device", "device", name, "by", by)
	return found, nil
}

// loadKey determines the private key. With Readdress (another node has the same key) it creates a new
// one, but only once in a run, although Readdress stays set.
func (k *wireguard) loadKey(dev dataplane.Device, before *wgtypes.Device) error {
	if err := k.wg.loadKey(&before.PrivateKey); err != nil {
		return err
	}
	if !dev.Readdress || k.wg.replaced {
		return nil
	}
	err := k.wg.replaceKey("replaced this node's private key, since another node has the same")
	k.wg.replaced = err == nil // else the next pass tries again, because of the error
	return err
}

// configure sets the key and the port of a device if they differ.
func (k *wireguard) configure(name string, want dataplane.WireGuard, before *wgtypes.Device) error {
	var config wgtypes.Config
	if before.PrivateKey != *k.wg.private.key {
		config.PrivateKey = k.wg.private.key
	}
	if port := int(want.Port); before.ListenPort != port {
		config.ListenPort = &port
	}
	if config.PrivateKey == nil && config.ListenPort == nil {
		return nil
	}
	if err := k.wg.client.configure(name, config); err != nil {
		return k.explain(want, fmt.Errorf("set its private key and port %d: %w", want.Port, err))
	}
	k.logDevice("set the device's key and port", "device", name, "publicKey", k.wg.private.public(), "port", want.Port)
	return nil
}
