package linux

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/guard"
	"flannel/pkg/reconcile"
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
// not known yet, is rejected or is gone. For these, a node has two more policies. The kernel
// applies the first that matches: those with ESP, then these in this order.
//
//	policy      out      10.244.1.0/24 to 10.244.1.0/24, pass
//	policy      out      10.244.1.0/24 to 10.244.0.0/16, block
//
// A packet of a peer that has been decrypted would leave, too, if this node had no route
// to its pod: see addNetworkRoutes.
//
// Policies and keys are in the kernel, and charon is a process of its own: the network
// works while flanneld does not run, and for as long as the keys are valid (an hour)
// without charon. ipsec is a kind: kind_linux.go says when the driver calls its methods.
type ipsec struct {
	none
	host
	xfrm     *xfrmStore                          // the store of policies, in the kernel
	policies *reconcile.Table[policyKey, policy] // between subnets
	ike      *ikeStore                           // the store of ikes, in charon
	ikes     *reconcile.Table[ikeKey, ikeConn]   // connections
	watch    ipsecWatch                          // has both tables listed again, see changed in newIPsec

	filled dataplane.IPsec      // the device for which fill makes entries, as of the last begin; zero: none
	blocks map[policyKey]policy // the policies without ESP that the table wants; see want
}

// newIPsec returns the kind of devices on which policies encrypt. It connects to nothing
// before the first device.
func newIPsec(h host) kind {
	k := &ipsec{host: h, xfrm: &xfrmStore{scope: &h.scope}}
	k.policies = reconcile.NewTable[policyKey, policy](k.xfrm)
	needed := func() bool { _, _, used := k.encryptingDevice(); return used } // the configured backend is ipsec
	name := "strongswan.conf"
	if h.opts.Instance != "" {
		name = "strongswan-" + h.opts.Instance + ".conf"
	}
	config := filepath.Join(h.opts.StateDir, name)
	// There may be connections of an earlier configuration, too: where there are policies, or a charon of ours.
	used := func() bool { return needed() || len(k.policies.AllActual()) > 0 || k.ike.mayStop() }
	k.ike = &ikeStore{log: h.opts.Log, replaced: map[ikeKey]bool{}, config: config, scope: &h.scope, needed: needed, used: used, spis: k.xfrm.spis, notify: k.watch.notify,
		starts: reconcile.Backoff{First: time.Second, Last: maxStartPause}}
	k.ikes = reconcile.NewTable[ikeKey, ikeConn](k.ike)
	k.ikes.Lapsed = ikeConn.lapsed
	k.watch.changed = func() { // any goroutine calls it
		k.dirty.Store(true) // so that ensure connects to charon again, if need be
		k.relistNetworks()
		k.notify()
	}
	return k
}

// tables has the policies of a connection before the connection, so that the kernel drops
// packets until there are keys, instead of sending them unencrypted.
func (k *ipsec) tables() (before, after dataplane.Tables) {
	return nil, dataplane.Tables{k.policies, k.ikes}
}

// relistNetworks makes policies and connections be listed, which are ours by their subnets.
func (k *ipsec) relistNetworks() {
	k.policies.Relist()
	k.ikes.Relist()
}

func (k *ipsec) fill(f *dataplane.Filling, p *dataplane.Path, _ dataplane.Link) {
	dev := k.filled // not zero: only this device has paths with ESP
	for _, e := range []struct {
		key   policyKey
		value policy
	}{
		{policyKey{netlink.XFRM_DIR_OUT, dev.Subnet, p.Dst}, policy{Src: dev.Local, Dst: p.Via}},
		{policyKey{netlink.XFRM_DIR_IN, p.Dst, dev.Subnet}, policy{Src: p.Via, Dst: dev.Local}},
		{policyKey{netlink.XFRM_DIR_FWD, p.Dst, dev.Subnet}, policy{Src: p.Via, Dst: dev.Local}},
	} {
		dataplane.Put(f, k.policies, e.key, e.value)
	}
	k.sysctls.countDirect(f.Verb, p)
	dataplane.Put(f, k.ikes, ikeKey{dev.Local, p.Via, dev.Subnet, p.Dst},
		ikeConn{id: dev.ID, proposal: dev.Proposal, udpEncap: dev.UDPEncap, secret: dev.Secret})
}

// want makes the table of policies want that packets of this node's pods to others
// are dropped unless a path's policy encrypts them. It wants all of these policies in each
// pass, since begin may have had the table reset.
func (k *ipsec) want(links dataplane.Links, s dataplane.State) {
	want := map[policyKey]policy{}
	name, dev, used := k.encryptingDevice()
	if _, exists := links[name]; used && exists { // without a link of ensure, IPsec may be another flanneld's
		for _, n := range s.Networks {
			if n.Contains(dev.Subnet.Addr()) { // not a network of IPv6, which the backend does not have
				want[policyKey{netlink.XFRM_DIR_OUT, dev.Subnet, n}] = policy{Priority: blockPriority}
			}
		}
		want[policyKey{netlink.XFRM_DIR_OUT, dev.Subnet, dev.Subnet}] = policy{Priority: localPriority}
	}
	for key := range k.blocks {
		if _, still := want[key]; !still {
			k.policies.Drop(key)
		}
	}
	for key, value := range want {
		k.policies.Want(key, value)
	}
	k.blocks = want
}

// found returns the paths of the outgoing policies that fill would make. Whether there is a
// connection does not matter: Apply makes it.
func (k *ipsec) found(dev dataplane.Device, _ []routeEntry, s dataplane.State) (found []*dataplane.Path) {
	want := dev.Kind.(dataplane.IPsec)
	for _, e := range k.policies.AllActual() {
		if e.Key.Dir == netlink.XFRM_DIR_OUT && e.Key.Src == want.Subnet && e.Value.Src == want.Local && dataplane.Inside(e.Key.Dst, s.Networks) {
			found = append(found, &dataplane.Path{Dst: e.Key.Dst, Via: e.Value.Dst, Device: dev.Name, Encap: dataplane.ESP{}})
		}
	}
	return found
}

func (*ipsec) networkRoutes(want map[routeKey]hop, _ dataplane.Device, _ dataplane.Link, s dataplane.State) {
	addBlackholes(want, s.Subnets)
}

// configureGuard says that policies of the kernel, not routes, lead to peers.
func (*ipsec) configureGuard(c *guard.Config, _ dataplane.Device) { c.Routed = false }

// parameters are, beside forwarding, those by which packets bypass the policies unless they are 0.
func (*ipsec) parameters(device string) []sysctl {
	all := []sysctl{forwarding(device)}
	for _, name := range []string{"all", device} {
		conf := "net/ipv4/conf/" + name
		all = append(all, sysctl{conf + "/disable_xfrm", "0"}, sysctl{conf + "/disable_policy", "0"})
	}
	return all
}

// ensure finds the underlay, and makes sure that charon runs. It returns no link if
// IPsec belongs to another flanneld: the kernel has policies of another network, and none of
// ours. If two have started at the same moment, both have policies; each keeps its link, with
// an error in each pass. Nor does it return a link if the kernel refuses XFRM altogether: then no
// policy can drop packets. If only ESP is missing, or startPaths fails, there is a link, so that the
// policies of paths stay wanted, which drop packets while there are no keys.
func (k *ipsec) ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error) {
	if found == nil {
		return dataplane.Link{}, errors.New("does not exist")
	}
	unable := k.xfrm.require()
	if k.xfrm.handle == nil || errors.Is(unable, unix.EOPNOTSUPP) {
		return dataplane.Link{}, unable
	}
	ours, err := k.xfrm.checkNetwork(dev.Networks)
	if err != nil && !ours {
		return dataplane.Link{}, errors.Join(err, k.watch.start(k.opts.Log)) // the watch notices when the other one is gone
	}
	if unable == nil {
		unable = k.startPaths()
	}
	return linkOf(found), errors.Join(err, unable)
}

// startPaths starts what the paths need beside the kernel, unless it has been started.
func (k *ipsec) startPaths() error {
	if err := k.watch.start(k.opts.Log); err != nil {
		return err
	}
	return k.ike.reach()
}

// encryptingDevice returns the name and the properties of the desired device that encrypts.
// used is false if the configuration has none: another backend.
func (k *ipsec) encryptingDevice() (name string, dev dataplane.IPsec, used bool) {
	for _, d := range k.desired {
		if dev, used := d.Kind.(dataplane.IPsec); used {
			return d.Name, dev, true
		}
	}
	return "", dev, false
}

// begin makes fill use the device of the last Ensure. It reports whether that is another
// device than before: every entry depends on it.
func (k *ipsec) begin() (reset bool) {
	_, dev, used := k.encryptingDevice()
	reset = dev != k.filled
	k.filled = dev
	k.watch.active.Store(used) // false ends its notifications
	return reset
}

// prune ends the charon that this flanneld has started, if it is no longer needed: with another
// backend. A Cleanup calls it, too, without any desired device. SIGTERM also removes the keys.
func (k *ipsec) prune(context.Context) error {
	if _, _, used := k.encryptingDevice(); used {
		return nil
	}
	return k.ike.stop(unix.SIGTERM)
}

// leave lets flannel have the policies that it makes, too. flannel starts a charon of its
// own, so that the one that flanneld has started is ended, and its keys stay in the kernel.
func (k *ipsec) leave(ctx context.Context, l *leaving) error {
	own := dataplane.Tables{k.policies, k.ikes}
	if err := own.Refresh(ctx); err != nil {
		return err
	}
	var blocks []policyEntry
	for _, e := range k.policies.AllActual() {
		ofFlannel := e.Value.Priority == 0 // with ESP; flannel has no others
		if !ofFlannel {
			blocks = append(blocks, e)
		}
		if !l.back || !ofFlannel {
			l.will("remove", "policy %s %s", e.Key, e.Value)
		}
	}
	if k.ike.mayStop() {
		l.will("end", "strongSwan's charon")
	}
	if l.back {
		if len(blocks) > 0 {
			l.step(func(ctx context.Context) error { return errors.Join(k.xfrm.Delete(ctx, blocks)...) })
		}
		l.end(func(context.Context) error { return k.ike.stop(unix.SIGKILL) }) // the keys stay
		return nil
	}
	for _, e := range k.ikes.AllActual() {
		l.will("remove", "connection %s", e.Key)
	}
	l.step(func(ctx context.Context) error { return own.Prune(ctx, k.opts) }) // they want nothing
	l.end(k.prune)
	return nil
}

func (k *ipsec) close() error {
	k.watch.close()
	k.ike.disconnect()
	k.xfrm.close()
	return nil
}

func (k *ipsec) traffic() map[netip.Prefix]dataplane.TunnelReport { return loadTraffic(&k.ike.traffic) }
