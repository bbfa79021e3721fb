package linux

import (
	"crypto/sha256"
	"errors"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/linux/guard"
	"flannel/pkg/reconcile/runner"
	"flannel/pkg/status/report"
)

// ipsec drives the encryption of what leaves through the underlay. A path is three
// policies of the kernel and a connection of strongSwan's charon, which gives the
// kernel the keys. For the peer 10.244.2.0/24 on the host 192.168.0.3, the node
// 10.244.1.0/24 on 192.168.0.2 has
//
//	policy      out      10.244.1.0/24 to 10.244.2.0/24, ESP from 192.168.0.2 to 192.168.0.3
//	policy      in, fwd  10.244.2.0/24 to 10.244.1.0/24, ESP from 192.168.0.3 to 192.168.0.2
//	connection  192.168.0.2-10.244.1.0/24-10.244.2.0/24-192.168.0.3
//
// It needs no route, since the host has a default one, by which a packet of a pod would
// also leave if no policy encrypted it: to a subnet that has no node, or whose node is
// not known yet, is rejected or is gone. For these, a node has
//
//	policy      out      10.244.1.0/24 to 10.244.1.0/24, pass, with a low priority
//	policy      out      10.244.1.0/24 to 10.244.0.0/16, block, with a lower one
//
// A packet of a peer that has been decrypted would leave, too, if this node had no route
// to its pod: see Driver.encrypts.
//
// Policies and keys are in the kernel, and charon is a process of its own: the network
// works while flanneld does not run, and for as long as the keys are valid (an hour)
// without charon.
type ipsec struct {
	none
	host
}

func newIPsec(h host) kind { return &ipsec{host: h} }

func (k *ipsec) fill(f *driver.Filling, p *dataplane.Path, _ dataplane.Link) {
	d := k.driver
	dev, _ := d.ipsecDevice()
	for _, e := range []struct {
		key   policyKey
		value policy
	}{
		{policyKey{netlink.XFRM_DIR_OUT, dev.Subnet, p.Dst}, policy{Src: dev.Local, Dst: p.Via}},
		{policyKey{netlink.XFRM_DIR_IN, p.Dst, dev.Subnet}, policy{Src: p.Via, Dst: dev.Local}},
		{policyKey{netlink.XFRM_DIR_FWD, p.Dst, dev.Subnet}, policy{Src: p.Via, Dst: dev.Local}},
	} {
		driver.Put(f, d.policies, e.key, e.value)
	}
	k.sysctls.countDirect(f.Verb, p)
	sum := sha256.Sum256([]byte(dev.Secret))
	driver.Put(f, d.ikes, ikeKey{dev.Local, p.Via, dev.Subnet, p.Dst},
		ikeConn{id: dev.ID, proposal: dev.Proposal, udpEncap: dev.UDPEncap, secret: [8]byte(sum[:8])})
}

// encrypting is what the tables want because of the device that encrypts.
type encrypting struct {
	device dataplane.IPsec // that their entries are for; zero: none
	blocks map[policyKey]policy
}

// wantBlocks makes the table of policies want that packets of this node's pods to others
// are dropped unless a path's policy encrypts them.
func (d *Driver) wantBlocks(networks []netip.Prefix) {
	want := map[policyKey]policy{}
	dev, used := d.ipsecDevice()
	if _, exists := d.links[d.ipsecName()]; used && exists { // else IPsec may be another flanneld's
		for _, n := range networks {
			if n.Contains(dev.Subnet.Addr()) {
				want[policyKey{netlink.XFRM_DIR_OUT, dev.Subnet, n}] = policy{Priority: blockPriority}
			}
		}
		want[policyKey{netlink.XFRM_DIR_OUT, dev.Subnet, dev.Subnet}] = policy{Priority: localPriority}
	}
	if maps.Equal(want, d.encrypting.blocks) {
		return
	}
	for key := range d.encrypting.blocks {
		d.policies.Drop(key)
	}
	for key, value := range want {
		d.policies.Want(key, value)
	}
	d.encrypting.blocks = want
}

// found returns the paths of the outgoing policies that fill would make.
func (k *ipsec) found(dev dataplane.Device, _ dataplane.Link, s dataplane.State) (found []*dataplane.Path) {
	d := k.driver
	want := dev.Kind.(dataplane.IPsec)
	for _, e := range d.policies.AllActual() {
		if e.Key.Dir == netlink.XFRM_DIR_OUT && e.Key.Src == want.Subnet && e.Value.Src == want.Local && driver.Inside(e.Key.Dst, s.Networks) {
			found = append(found, &dataplane.Path{Dst: e.Key.Dst, Via: e.Value.Dst, Device: dev.Name, Encap: dataplane.ESP{}})
		}
	}
	return found
}

func (*ipsec) networkRoutes(want map[routeKey]hop, _ dataplane.Device, _ dataplane.Link, s dataplane.State) {
	addBlackholes(want, s.Subnets)
}

// describeOuter says that policies of the kernel, not routes, lead to peers.
func (*ipsec) describeOuter(c *guard.Config, _ dataplane.Device) { c.Routed = false }

// parameters are also those with which packets bypass the policies.
func (*ipsec) parameters(device string) []sysctl {
	all := []sysctl{forwarding(device)}
	for _, name := range []string{"all", device} {
		conf := "net/ipv4/conf/" + name
		all = append(all, sysctl{conf + "/disable_xfrm", "0"}, sysctl{conf + "/disable_policy", "0"})
	}
	return all
}

// ensure finds the underlay, and makes sure that charon runs. It returns no link if
// IPsec belongs to another flanneld. If two have started at the same moment, both have
// policies, and go on with an error.
func (k *ipsec) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	d := k.driver
	if found == nil {
		return dataplane.Link{}, errors.New("does not exist")
	}
	ours, err := d.xfrm.checkNetwork(dev.Networks)
	if err != nil && !ours {
		return dataplane.Link{}, errors.Join(err, d.ipsecWatch.start(d)) // it notices when the other one is gone
	}
	return linkOf(found), errors.Join(err, k.startPaths())
}

// startPaths starts what the paths need, unless it has been started.
func (k *ipsec) startPaths() error {
	d := k.driver
	if err := d.xfrm.require(); err != nil {
		return err
	}
	if err := d.ipsecWatch.start(d); err != nil {
		return err
	}
	return d.ike.reach()
}

// ipsecIndex returns the index in Driver.devices of the device that encrypts; -1: there
// is none.
func (d *Driver) ipsecIndex() int {
	return slices.IndexFunc(d.desired, func(dev dataplane.Device) bool { _, is := dev.Kind.(dataplane.IPsec); return is })
}

// ipsecDevice returns the desired properties of the device that encrypts.
func (d *Driver) ipsecDevice() (dev dataplane.IPsec, used bool) {
	if i := d.ipsecIndex(); i >= 0 {
		return d.desired[i].Kind.(dataplane.IPsec), true
	}
	return dev, false
}

func (d *Driver) ipsecName() string {
	if i := d.ipsecIndex(); i >= 0 {
		return d.desired[i].Name
	}
	return ""
}

// ipsecWatch makes the tables of policies and connections list again when somebody
// changed what they hold, and regularly: there are no notifications of connections that
// somebody removed.
type ipsecWatch struct {
	policies *nl.NetlinkSocket // nil: not started
	active   atomic.Bool
	stop     chan struct{}
	done     sync.WaitGroup
}

// start starts the watch, unless it has been started. close ends it.
func (w *ipsecWatch) start(d *Driver) error {
	w.active.Store(true)
	if w.policies != nil {
		return nil
	}
	s, err := nl.Subscribe(unix.NETLINK_XFRM, nl.XFRMNLGRP_SA, nl.XFRMNLGRP_POLICY)
	if err != nil {
		return err
	}
	w.policies, w.stop = s, make(chan struct{})
	w.done.Go(func() {
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(pollInterval):
				w.notify(d)
			}
		}
	})
	w.done.Go(func() {
		for {
			// ENOBUFS: notifications were lost, which means the same as one.
			if _, _, err := s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			w.notify(d)
		}
	})
	return nil
}

// notify wakes the loop, which reads all again.
func (w *ipsecWatch) notify(d *Driver) {
	if !w.active.Load() {
		return
	}
	d.dirty.Store(true)
	d.policies.Relist()
	d.ikes.Relist()
	runner.Notify(d.changes)
}

func (w *ipsecWatch) close() {
	if w.policies != nil {
		close(w.stop)
		w.policies.Close()
		w.done.Wait()
	}
}

// wantIPsec makes the tables want nothing if the device that encrypts has changed:
// every entry depends on it.
func (d *Driver) wantIPsec() {
	dev, used := d.ipsecDevice()
	if dev != d.encrypting.device {
		d.resetTables()
		d.encrypting.device = dev
	}
	d.ike.secret = dev.Secret
	d.ipsecWatch.active.Store(used)
}

// closeIPsec ends the charon that this flanneld has started, if it is no longer needed.
func (d *Driver) closeIPsec() error {
	if _, used := d.ipsecDevice(); used {
		return nil
	}
	return d.ike.stop(unix.SIGTERM)
}

// newIKEStore returns the store of connections.
func (d *Driver) newIKEStore() *ikeStore {
	needed := func() bool { _, used := d.ipsecDevice(); return used }
	name := "strongswan.conf"
	if d.opts.Instance != "" {
		name = "strongswan-" + d.opts.Instance + ".conf"
	}
	config := filepath.Join(d.opts.StateDir, name)
	used := func() bool { return needed() || len(d.policies.AllActual()) > 0 || d.ike.mayStop() }
	return &ikeStore{log: d.opts.Log, config: config, scope: &d.scope, needed: needed, used: used, spis: d.xfrm.spis, notify: func() { d.ipsecWatch.notify(d) }}
}

func (k *ipsec) traffic() map[netip.Prefix]report.Tunnel { return loadTraffic(&k.driver.ike.traffic) }
