package linux

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// Forwarding depends on parameters of each device, beside those of the whole host. A new
// device inherits them from "default", and anybody can change them later.
//
//	parameter        on flanneld's own devices                     on pods' interfaces and an underlay with direct routes
//	forwarding (4)   1: else the kernel drops what arrives there   reported, not changed
//	rp_filter        2 if strict: all nodes may send through it    left alone: strict is right on most
//	disable_ipv6     0 if the device has IPv6 addresses            left to the doctor
//	forwarding (6)   left alone: the kernel decides by "all" only  left alone
//	accept_ra        0: nobody there is a router of this host      see keepDefaultRoutes
//	accept_local     1 on a TUN device (tun.ensure)                left alone
//	disable_xfrm,    -                                             reported with ipsec: packets bypass the policies
//	disable_policy
//
// To set IPv6 forwarding of a single device would cost the host the default routes that
// it has by router advertisements, on all interfaces with accept_ra 1.
//
// The kernel notifies of changes of forwarding and rp_filter (watcher.netconf). If IPv6 is
// disabled, the device loses its addresses, of which it notifies, too.

// setForTunnel sets the parameters of one of flanneld's own devices with these
// addresses. IPv6 must be enabled before the device can get its addresses. The network
// works without what try sets, so try only logs that it cannot set a parameter, and returns
// an error only if it could not read it. An error of set is a problem of the device.
func (s *sysctls) setForTunnel(name string, addrs []netip.Prefix) error {
	has := func(v6 bool) bool { // the device has addresses of this family
		return slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 })
	}
	errs := []error{s.try("net/ipv6/conf/"+name+"/accept_ra", "0")}
	if has(false) { // IPv4
		errs = append(errs, s.forwardFrom(name), s.loosenReversePath(name))
	}
	if has(true) { // IPv6
		errs = append(errs, s.set("net/ipv6/conf/"+name+"/disable_ipv6", "0"))
	}
	return errors.Join(errs...)
}

// forwardFrom makes the kernel forward IPv4 packets that arrive on a device. Its error is
// reconcile.Unknown if the value could not be read, else a NotForwardingError.
func (s *sysctls) forwardFrom(device string) error {
	p := forwarding(device)
	err := s.set(p.path, p.want)
	if err == nil || reconcile.IsUnknown(err) {
		return err
	}
	return &dataplane.NotForwardingError{Sysctl: p.path, Value: "0", Want: p.want, Err: err}
}

// loosenReversePath makes the kernel accept packets on a device whose senders it would
// answer through another one, such as those that a node sends to pods with its address on
// the underlay. The larger one of two values is in force, and 1 is the strict one: the
// value 2 of the device overrides the value 1 of "all".
func (s *sysctls) loosenReversePath(device string) error {
	path, strictest := "net/ipv4/conf/"+device+"/rp_filter", 0
	for _, p := range []string{path, "net/ipv4/conf/all/rp_filter"} {
		text, err := readSysctl(p)
		if err != nil {
			return err
		}
		value, _ := strconv.Atoi(text) // 0 for "": the kernel does not have the parameter
		strictest = max(strictest, value)
	}
	if strictest != 1 {
		return nil
	}
	return s.try(path, "2")
}

// countDirect counts the IPv4 paths through a device of others, for checkForeignDevices. The
// kinds with such devices (existing, ipsec) call it in fill, on the loop's goroutine. fill
// passes the entries of a path to the tables; the verb of its Filling says whether they are
// wanted, dropped, or (CollectKeys, which counts nothing) only listed. Each path is wanted once
// and dropped once, unless resetTables clears the counts. The first path makes this pass check
// the device's parameters.
func (s *sysctls) countDirect(verb dataplane.Verb, p *dataplane.Path) {
	switch {
	case !p.Dst.Addr().Is4(): // the kernel decides on IPv6 by "all" only
	case verb == dataplane.Want:
		if s.direct[p.Device]++; s.direct[p.Device] == 1 {
			s.dirty.Store(true)
		}
	case verb == dataplane.Drop:
		s.direct[p.Device]--
	}
}

// sysctl is a parameter and the value that it must have.
type sysctl struct{ path, want string }

// forwarding is the parameter that makes the kernel forward IPv4 packets that arrive on a
// device.
func forwarding(device string) sysctl { return sysctl{"net/ipv4/conf/" + device + "/forwarding", "1"} }

// checkForeignDevices returns an error for each parameter of devices of others that keeps
// the kernel from forwarding packets between pods of this node and of peers. Whoever
// made the device decides on its parameters, so that they are only reported: enableForwarding,
// its caller, returns the error. pods returns the names of the pods' interfaces.
func (d *Driver) checkForeignDevices(pods func() ([]string, error)) error {
	var errs []error
	require := func(p sysctl) {
		value, err := readSysctl(p.path)
		if err == nil && value != "" && value != p.want {
			err = &dataplane.NotForwardingError{Sysctl: p.path, Value: value, Want: p.want}
		}
		errs = append(errs, err)
	}
	names, err := pods()
	if err != nil {
		errs = append(errs, reconcile.Unknown(err))
	}
	for _, name := range names {
		// A tunnel device has an address in this node's subnets, too, and is set by setForTunnel.
		if !slices.ContainsFunc(d.desired, func(dev dataplane.Device) bool { return dev.Name == name }) {
			require(forwarding(name))
		}
	}
	for _, dev := range d.desired { // only devices of others, such as the underlay, are counted in direct
		if k, err := d.kindOf(dev); err == nil && d.sysctls.direct[dev.Name] > 0 {
			for _, p := range k.parameters(dev.Name) {
				require(p)
			}
		}
	}
	return errors.Join(errs...)
}
