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
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/linux/guard"
	"flannel/pkg/linux/udptunnel"
	"flannel/pkg/reconcile"
	"flannel/pkg/reconcile/runner"
	"flannel/pkg/status/report"
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
type tun struct {
	none
	host
}

func newTUN(h host) kind { return &tun{host: h} }

func (k *tun) fill(f *driver.Filling, p *dataplane.Path, _ dataplane.Link) {
	d := k.driver
	driver.Put(f, d.datagrams, p.Dst, netip.AddrPortFrom(p.Via, d.portOf(p.Device)))
}

func (*tun) networkRoutes(want map[routeKey]hop, _ dataplane.Device, link dataplane.Link, s dataplane.State) {
	for _, n := range s.Networks {
		if link.Index != 0 && n.Addr().Is4() {
			want[routeKey{Dst: n}] = hop{Index: link.Index}
		}
	}
}

func (*tun) describeOuter(c *guard.Config, dev dataplane.Device) {
	want := dev.Kind.(dataplane.TUN)
	addUDP(c, guard.Outer{Port: want.Port})
	for _, a := range want.Addr {
		c.Errors = append(c.Errors, a.Addr())
	}
}

// portOf returns the port of a TUN device of the last Ensure.
func (d *Driver) portOf(device string) uint16 {
	for _, dev := range d.desired {
		if t, ok := dev.Kind.(dataplane.TUN); ok && dev.Name == device {
			return t.Port
		}
	}
	return 0
}

func (k *tun) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	d := k.driver
	want := dev.Kind.(dataplane.TUN)
	if _, ok := found.(*netlink.Tuntap); found != nil && (!ok || isTAP(found)) {
		return dataplane.Link{}, fmt.Errorf("there is a device of this name and of type %s, which is not flannel's: delete it, or set another Backend.Port for all nodes", found.Type())
	}
	if found != nil {
		if err := d.checkNetwork(dev, found); err != nil {
			return dataplane.Link{}, err
		}
	}
	if err := k.forward(dev.Name, want, found != nil); err != nil {
		return linkOf(found), err
	}
	if found == nil {
		var err error
		if found, err = d.find(dev.Name); err != nil {
			return dataplane.Link{}, fmt.Errorf("find it after creating it: %w", err)
		}
		if found == nil {
			return dataplane.Link{}, errors.New("somebody deleted it just after its creation")
		}
		d.logDevice("created the device", "device", dev.Name)
	}
	if found.Attrs().GSOMaxSegs > udptunnel.MaxSegments {
		if err := d.handle.LinkSetGSOMaxSegs(found, udptunnel.MaxSegments); err != nil { // kernels before 4.16
			d.opts.Log.Debug("cannot limit the segments of a packet", "device", dev.Name, "error", err)
		}
	}
	// The forwarder sends ICMP errors from the device's own address into the kernel. Without
	// this, pods do not get them.
	err := d.sysctls.try("net/ipv4/conf/"+dev.Name+"/accept_local", "1")
	return d.linkAfterRepair(found, errors.Join(d.repairTunnel(dev, want.Tunnel, found), err))
}

// forward opens the forwarder of a device, unless it runs already as wanted. exists
// means that there is a device with this name.
func (k *tun) forward(name string, want dataplane.TUN, exists bool) error {
	d := k.driver
	options := udptunnel.Options{
		Device: name, Local: netip.AddrPortFrom(want.Local, want.Port), Peers: &d.peers, Counters: &d.counters,
	}
	if len(want.Addr) > 0 {
		options.Source = want.Addr[0].Addr()
	}
	if running := d.forwarders[name]; running != nil {
		var err error
		switch {
		case ended(running):
			d.opts.Log.Warn("the forwarder of the device has ended, starting it again", "device", name, "reason", running.Err())
			err = running.Close()
		case !exists || !running.Attached(): // deleted, or renamed and perhaps replaced
			err = running.Destroy()
		case running.Options() != options:
			err = running.Close()
		default:
			return nil
		}
		if err != nil {
			d.opts.Log.Debug("cannot close a forwarder", "device", name, "error", err)
		}
		delete(d.forwarders, name)
	}
	t, err := udptunnel.Open(options)
	if err != nil {
		return err
	}
	d.forwarders[name] = t
	d.forwarded.Store(true)
	d.diverting.Store(true)
	go func() { // ends with the forwarder
		<-t.Done()
		d.dirty.Store(true)
		runner.Notify(d.changes)
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

// destroyForwarders ends the forwarders of devices that Ensure was not given, and
// deletes these devices.
func (d *Driver) destroyForwarders() error {
	var errs []error
	for name, t := range d.forwarders {
		if slices.ContainsFunc(d.desired, func(dev dataplane.Device) bool { return dev.Name == name }) {
			continue
		}
		gone := ended(t)
		if err := t.Destroy(); err != nil && !gone {
			errs = append(errs, fmt.Errorf("delete the device %s: %w", name, err))
			continue
		}
		delete(d.forwarders, name)
		delete(d.made, name)
		d.opts.Log.Info("deleted a device that is no longer configured", "device", name)
	}
	return errors.Join(errs...)
}

// startForwarders starts those that Ensure has opened. They must not start before the
// peers are known.
func (d *Driver) startForwarders() {
	for _, t := range d.forwarders {
		t.Start()
	}
}

// closeForwarders ends all forwarders. Their devices stay.
func (d *Driver) closeForwarders() error {
	var errs []error
	for _, t := range d.forwarders {
		errs = append(errs, t.Close())
	}
	clear(d.forwarders)
	return errors.Join(errs...)
}

// diverted returns the paths through TUN devices whose packets a route of others leads
// elsewhere. With other kinds of paths, each peer's subnet is the destination of a route
// of ours, which replaces others. Here it is a part of the network's route, and any route
// to a part of the network comes before that.
func (d *Driver) diverted(s dataplane.State) (found []dataplane.Refused) {
	if d.datagrams.Len() == 0 {
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
	for _, key := range slices.SortedFunc(maps.Keys(d.foreign), func(a, b routeKey) int { return a.Dst.Compare(b.Dst) }) {
		for bits := range key.Dst.Bits() + 1 { // it is a part of the peer's subnet, or the whole
			if of := netip.PrefixFrom(key.Dst.Addr(), bits).Masked(); d.datagrams.Wanted(of) {
				add(of, key)
			}
		}
		for _, p := range s.Paths { // it contains the peer's subnet; subnets of peers have one size
			if p.Dst.Bits() <= key.Dst.Bits() {
				break
			}
			if key.Dst.Contains(p.Dst.Addr()) && d.datagrams.Wanted(p.Dst) {
				add(p.Dst, key)
			}
		}
	}
	return found
}

// Forwarded implements dataplane.Dataplane.
func (d *Driver) Forwarded() *report.Forwarded {
	if !d.forwarded.Load() {
		return nil
	}
	f := d.counters.Get()
	return &f
}

// datagramStore holds the entries of the forwarders: the peers' subnets, and where to
// send their packets.
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
