package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/guard"
	"flannel/pkg/linux/udptunnel"
	"flannel/pkg/reconcile"
)

// tun drives TUN devices, whose packets a udptunnel.Tunnel in this process forwards.
// The whole pod network is routed to the device, and a path is an entry of the
// forwarder. For the network 10.244.0.0/16 and the peer 10.244.2.0/24 on the host
// 192.168.0.3:
//
//	route       10.244.0.0/16 dev flannel0 scope link
//	forwarder   10.244.2.0/24 to 192.168.0.3:8285
//
// The device stays when the process ends. The next one attaches to it again.
//
// tun is a kind: kind_linux.go says when the driver calls its methods.
type tun struct {
	none
	host
	datagrams  *reconcile.Table[netip.Prefix, netip.AddrPort] // of the forwarders: subnets, and where to send their packets
	peers      udptunnel.Peers                                // what datagramStore has written, which forwarders read
	counters   udptunnel.Counters                             // of all forwarders since the start
	forwarders map[string]*udptunnel.Tunnel                   // by device; of the loop alone, as all but peers and counters
}

// newTUN returns the kind of TUN devices.
func newTUN(h host) kind {
	k := &tun{host: h, forwarders: map[string]*udptunnel.Tunnel{}}
	k.datagrams = reconcile.NewTable[netip.Prefix, netip.AddrPort](datagramStore{&k.peers})
	return k
}

// tables has the datagrams before the routes, so that a packet that takes a new route finds
// its receiver.
func (k *tun) tables() (before, after dataplane.Tables) { return dataplane.Tables{k.datagrams}, nil }

func (k *tun) fill(f *dataplane.Filling, p *dataplane.Path, _ dataplane.Link) {
	dev, _ := k.device(p.Device).Kind.(dataplane.TUN) // zero if it is being dropped: then only the key counts
	dataplane.Put(f, k.datagrams, p.Dst, netip.AddrPortFrom(p.Via, dev.Port))
}

func (*tun) networkRoutes(want map[routeKey]hop, _ dataplane.Device, link dataplane.Link, s dataplane.State) {
	for _, n := range s.Networks {
		if link.Index != 0 && n.Addr().Is4() {
			want[routeKey{Dst: n}] = hop{Index: link.Index}
		}
	}
}

// configureGuard names the addresses from which forwarders send ICMP errors (udptunnel.Options.Source).
func (*tun) configureGuard(c *guard.Config, dev dataplane.Device) {
	for _, a := range dev.Kind.(dataplane.TUN).Addr {
		c.Errors = append(c.Errors, a.Addr())
	}
}

func (k *tun) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	want := dev.Kind.(dataplane.TUN)
	if _, ok := found.(*netlink.Tuntap); found != nil && (!ok || isTAP(found)) {
		return dataplane.Link{}, fmt.Errorf("there is a device of this name and of type %s, which is not flannel's: delete it, or set another Backend.Port for all nodes", found.Type())
	}
	if found != nil {
		if err := k.checkNetwork(dev, found); err != nil {
			return dataplane.Link{}, err
		}
	}
	if err := k.forward(dev.Name, want, found != nil); err != nil {
		return linkOf(found), err
	}
	if found == nil { // forward has created it
		var err error
		if found, err = k.find(dev.Name); err != nil {
			return dataplane.Link{}, fmt.Errorf("find it after creating it: %w", err)
		}
		if found == nil {
			return dataplane.Link{}, errors.New("somebody deleted it just after its creation")
		}
		k.logDevice("created the device", "device", dev.Name)
	}
	if found.Attrs().GSOMaxSegs > udptunnel.MaxSegments { // else the kernel may put more into a packet than one read returns
		if err := k.handle.LinkSetGSOMaxSegs(found, udptunnel.MaxSegments); err != nil { // kernels before 4.16
			k.log.Debug("cannot limit the segments of a packet", "device", dev.Name, "error", err)
		}
	}
	// The forwarder sends ICMP errors from the device's own address into the kernel. Without
	// accept_local, pods do not get them.
	err := k.sysctls.try("net/ipv4/conf/"+dev.Name+"/accept_local", "1")
	return k.linkAfterRepair(found, errors.Join(k.repairTunnel(dev, want.Tunnel, found), err))
}

// forward opens the forwarder of a device, which creates the device if there is none, unless a
// forwarder runs already as wanted. exists means that there is a device with this name. The
// forwarder begins with start, once Apply has written the peers; until then, packets wait.
func (k *tun) forward(name string, want dataplane.TUN, exists bool) error {
	options := udptunnel.Options{
		Device: name, Local: netip.AddrPortFrom(want.Local, want.Port), Peers: &k.peers, Counters: &k.counters,
	}
	if len(want.Addr) > 0 { // the backend gives the device one address
		options.Source = want.Addr[0].Addr()
	}
	if running := k.forwarders[name]; running != nil {
		var err error
		switch {
		case ended(running):
			k.log.Warn("the forwarder of the device has ended, starting it again", "device", name, "reason", running.Err())
			err = running.Close()
		case !exists || !running.Attached(): // deleted, or renamed and perhaps replaced
			err = running.Destroy() // deletes the device under its other name, if it has one
		case running.Options() != options:
			err = running.Close()
		default:
			return nil
		}
		if err != nil {
			k.log.Debug("cannot close a forwarder", "device", name, "error", err)
		}
		delete(k.forwarders, name)
	}
	t, err := udptunnel.Open(options)
	if err != nil {
		return err
	}
	k.forwarders[name] = t
	k.diverting.Store(true) // from now on, the watcher looks at routes of others: see diverted
	go func() {             // ends with the forwarder
		<-t.Done()
		k.dirty.Store(true) // so that the next Ensure calls forward
		k.notify()
	}()
	return nil
}

// ended reports whether a forwarder has stopped.
func ended(t *udptunnel.Tunnel) bool {
	select {
	case <-t.Done():
		return true
	default:
		return false
	}
}

// prune ends the forwarders of devices that Ensure was not given, and
// deletes these devices. If there is none left, it ends the reports (forwarded), too.
func (k *tun) prune(context.Context) error {
	isTUN := func(dev dataplane.Device) bool { _, is := dev.Kind.(dataplane.TUN); return is }
	if !slices.ContainsFunc(k.desired, isTUN) { // the node has another backend now
		k.diverting.Store(false)
	}
	var errs []error
	for name, t := range k.forwarders {
		if k.device(name).Name == name { // it is still desired
			continue
		}
		gone := ended(t) // perhaps because somebody has deleted the device: then an error of Destroy means nothing
		err := t.Destroy()
		if err != nil && !gone {
			errs = append(errs, fmt.Errorf("delete the device %s: %w", name, err))
			continue
		}
		delete(k.forwarders, name)
		delete(k.made, name)
		if err == nil {
			k.log.Info("deleted a device that is no longer configured", "device", name)
		}
	}
	return errors.Join(errs...)
}

// start starts the forwarders that Ensure has opened, unless they have been started. They must not
// start before the peers are known (udptunnel.Tunnel.Start).
func (k *tun) start() {
	for _, t := range k.forwarders {
		t.Start()
	}
}

// close ends all forwarders. Their devices stay.
func (k *tun) close() error {
	var errs []error
	for _, t := range k.forwarders {
		errs = append(errs, t.Close())
	}
	clear(k.forwarders)
	return errors.Join(errs...)
}

// diverted returns the paths through TUN devices whose packets a route of others leads
// elsewhere. With other kinds of paths, each peer's subnet is the destination of a route
// of ours, which replaces others. Here it is a part of the network's route, and any route
// to a part of the network comes before that.
func (k *tun) diverted(s dataplane.State) (found []dataplane.Refused) {
	if k.datagrams.Len() == 0 {
		return nil
	}
	seen := map[netip.Prefix]bool{}
	add := func(dst netip.Prefix, key routeKey) {
		if !seen[dst] {
			seen[dst] = true
			found = append(found, dataplane.Refused{Dst: dst, Err: fmt.Errorf("the route to %s, which is not flanneld's, comes before that through the tunnel: "+
				"delete it (ip route show root %s)", key.Dst, key.Dst)})
		}
	}
	// foreign are the routes of others into our networks, as of the last list of routes.
	for _, key := range slices.SortedFunc(maps.Keys(k.foreign), func(a, b routeKey) int { return a.Dst.Compare(b.Dst) }) { // for the same text each time
		for bits := range key.Dst.Bits() + 1 { // the route is for a part of a peer's subnet, or the whole
			if of := netip.PrefixFrom(key.Dst.Addr(), bits).Masked(); k.datagrams.Wanted(of) {
				add(of, key)
			}
		}
		for _, p := range s.Paths { // the route is for several peers' subnets, all of which have one size
			if p.Dst.Bits() <= key.Dst.Bits() { // so are those of all peers
				break
			}
			if key.Dst.Contains(p.Dst.Addr()) && k.datagrams.Wanted(p.Dst) {
				add(p.Dst, key)
			}
		}
	}
	return found
}

// forwarded implements kind. Any goroutine may call it.
func (k *tun) forwarded() *dataplane.Forwarded {
	if !k.diverting.Load() { // there was no forwarder yet, or the node has another backend now
		return nil
	}
	f := k.counters.Get()
	return &f
}

// datagramStore is the store of the table datagrams. Its entries are in this process.
type datagramStore struct{ peers *udptunnel.Peers }

func (datagramStore) Name() string { return "udp-peers" }

func (s datagramStore) List(context.Context) (map[netip.Prefix]netip.AddrPort, error) {
	all := s.peers.All()
	if all == nil {
		all = map[netip.Prefix]netip.AddrPort{}
	}
	return all, nil
}

type datagramEntry = reconcile.Entry[netip.Prefix, netip.AddrPort]

func (s datagramStore) Set(_ context.Context, entries []datagramEntry) []error {
	changed := make(map[netip.Prefix]netip.AddrPort, len(entries))
	for _, e := range entries {
		changed[e.Key] = e.Value
	}
	s.peers.Set(changed)
	return nil
}

func (s datagramStore) Delete(_ context.Context, entries []datagramEntry) []error {
	subnets := make([]netip.Prefix, len(entries))
	for i, e := range entries {
		subnets[i] = e.Key
	}
	s.peers.Delete(subnets)
	return nil
}
