package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"flannel/backend"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/dataplane"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
)

// CNISources are the sources of the values in a Windows node's CNI configuration. The command
// cni-conf makes one, and calls Complete and then TryInHNS (trial.go), on one goroutine. The
// values themselves are in a conflist.Spec, which has the flags of the command first.
type CNISources struct {
	NetConf       func(context.Context) ([]byte, error) // reads the raw network configuration
	NetConfName   string                                // for errors
	NetConfRemote bool                                  // it is in etcd, which may be unreachable
	SubnetFile    string                                // finds the status socket of the daemon
	// Services reads the networks of Services from the Kubernetes API; nil: none is configured.
	Services func(context.Context) ([]netip.Prefix, error)
	// Within is the time limit of each request over the network: to etcd, and to the
	// Kubernetes API. 0: 3 seconds.
	Within time.Duration
	HNS    *hns.Client // nil: there is none on this machine
	// KubeProxyDSR reports whether a kube-proxy runs on this machine with direct server return;
	// known is false if none runs, or its command line does not say so. nil: not known.
	KubeProxyDSR func() (dsr, known bool)
	// Underlay reads the interfaces of this machine.
	Underlay func() (underlay.Snapshot, error)
	Log      *slog.Logger

	local time.Duration // see localLimit; 0, but in tests
}

// localLimit returns the time limit of what is asked on this machine: of the daemon and
// HNS together in Complete, and of HNS in TryInHNS.
func (n CNISources) localLimit() time.Duration { return cmp.Or(n.local, 10*time.Second) }

// Complete sets the fields of s that are not set. What flags have set stays.
//
//	field                                           source
//	plugin, HNS network, pod networks, MAC prefix   network configuration
//	the node's own addresses                        daemon, if it runs
//	networks of the nodes                           adapter with the node's address
//	encapsulation overhead (if negative)            the MTU of that adapter
//	networks of Services                            Kubernetes API
//
// A field stays empty if its source does not have it; then conflist.Make asks for the
// flag. err joins why the network configuration, the daemon or the API could not be used; the
// command reports it if a field is missing.
//
// Complete also turns LoopbackDSR off where it does harm: see withoutDSR. (With LoopbackDSR, a
// pod reaches itself through a Service.) doubt are the options of s that HNS may refuse, and
// about which TryInHNS asks HNS.
func (n CNISources) Complete(ctx context.Context, s *conflist.Spec) (doubt conflist.Options, err error) {
	n.Within = cmp.Or(n.Within, 3*time.Second)
	netConfErr := n.fromNetConf(ctx, s)
	s.MACPrefix = cmp.Or(s.MACPrefix, "0E-2A") // the default of the plugin and of HNS
	daemonErr := n.fromMachine(ctx, s)
	snapshot, err := n.Underlay()
	if err == nil && len(s.Management) == 0 {
		s.Management = networkOf(snapshot, s.ManagementIP)
	}
	if s.EncapOverhead < 0 { // no flag has set it
		s.EncapOverhead = encapOverhead(snapshot, s) // 0 after an error, too
		doubt.EncapOverhead = s.EncapOverhead > 0
	}
	doubt.LoopbackDSR = s.LoopbackDSR && s.API != 1 // version 2 of HNS's API alone was reported to refuse it
	var servicesErr error
	if len(s.Services) == 0 && n.Services != nil && netConfErr == nil {
		ctx, cancel := context.WithTimeout(ctx, n.Within)
		defer cancel()
		s.Services, servicesErr = n.Services(ctx)
	}
	s.Services = ofFamilies(s.Services, s.Cluster)
	return doubt, errors.Join(netConfErr, daemonErr, servicesErr)
}

// fromMachine sets what the daemon, HNS and kube-proxy on this machine know. The error
// says why the node's address is not known.
func (n CNISources) fromMachine(ctx context.Context, s *conflist.Spec) (err error) {
	ctx, cancel := context.WithTimeout(ctx, n.localLimit())
	defer cancel()
	if !s.ManagementIP.IsValid() || !s.ManagementIP6.IsValid() {
		err = n.fromDaemon(ctx, s)
	}
	if n.withoutDSR(ctx) {
		s.LoopbackDSR = false
	}
	return err
}

// fromDaemon sets the node's addresses that are not set, from what the daemon's status
// socket reports: the first address, and the last one if it is of IPv6. r.Node is nil
// until the node has a subnet.
func (n CNISources) fromDaemon(ctx context.Context, s *conflist.Spec) error {
	r, err := status.Ask(ctx, status.Socket(n.SubnetFile))
	if err == nil && r.Node != nil && len(r.Node.Underlay.Addrs) > 0 {
		addrs := r.Node.Underlay.Addrs // IPv4 first
		if !s.ManagementIP.IsValid() {
			s.ManagementIP = addrs[0]
		}
		if last := addrs[len(addrs)-1]; last.Is6() && !s.ManagementIP6.IsValid() {
			s.ManagementIP6 = last
		}
	}
	if !s.ManagementIP.IsValid() {
		return noAddress(err)
	}
	return nil // without IPv6 the node may have no such address
}

// withoutDSR reports whether LoopbackDSR must be off. If HNS lacks direct server return,
// the sdn plugins fail with the option, and the others exhaust the ports (plugins#613). A
// kube-proxy that runs without direct server return does not need the option. An HNS that
// does not answer says nothing.
func (n CNISources) withoutDSR(ctx context.Context) bool {
	if n.HNS != nil {
		if version, err := n.HNS.Version(ctx); err == nil && !version.Features().DSR {
			return true
		}
	}
	if n.KubeProxyDSR == nil {
		return false
	}
	dsr, known := n.KubeProxyDSR()
	return known && !dsr
}

// noAddress returns the error for a daemon that does not say which address the node has:
// it does not answer because of err, or err is nil, and it has chosen none yet.
func noAddress(err error) error {
	const why = "the daemon chooses the node's own address (--iface has no effect on cni-conf)"
	if err != nil {
		return fmt.Errorf("%s, and it does not answer: %w", why, err)
	}
	return errors.New(why + ", and it has none yet")
}

// OpenHNS returns the HNS of this machine; nil: it has none.
func OpenHNS() *hns.Client {
	calls, err := hns.Open()
	if err != nil {
		return nil
	}
	return hns.NewClient(calls, hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second})
}

// ofFamilies removes the networks of a family that no pod network has: on an overlay,
// where pods have IPv4 only, IPv6 networks of Services are not usable. If the pod
// networks are not known, it removes none.
func ofFamilies(networks, pods []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(networks, func(p netip.Prefix) bool {
		return len(pods) > 0 && !slices.ContainsFunc(pods, func(pod netip.Prefix) bool { return pod.Addr().Is4() == p.Addr().Is4() })
	})
}

// fromNetConf sets what follows from the network configuration and its backend. If
// flags set plugin, HNS network and pod networks, a configuration in etcd is not read,
// since etcd may be unreachable, and nothing else of it is needed.
func (n CNISources) fromNetConf(ctx context.Context, s *conflist.Spec) error {
	if s.Plugin != "" && s.Network != "" && len(s.Cluster) > 0 && n.NetConfRemote {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.Within)
	defer cancel()
	raw, err := n.NetConf(ctx)
	if err != nil {
		return fmt.Errorf("%w; or set --plugin, --network-name and --cluster-cidr", err)
	}
	config, maker, _, err := backend.ParseConfig("windows", raw)
	if err != nil {
		return fmt.Errorf("%s is invalid: %w", n.NetConfName, err)
	}
	// Name and MAC prefix do not depend on the node, but a backend is made for one, and
	// needs some MTU.
	dev, err := hnsNetwork(maker, backend.Node{Underlay: underlay.Link{MTU: 1500}, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return fmt.Errorf("%s: %w", n.NetConfName, err)
	}
	plugin := "win-bridge" // this one and win-overlay are the CNI project's
	if overlay, ok := dev.Kind.(dataplane.Overlay); ok {
		plugin = "win-overlay"
		if first := overlay.MACs[0]; first != (dataplane.MAC{}) { // zero: without MacPrefix, HNS chooses
			s.MACPrefix = cmp.Or(s.MACPrefix, fmt.Sprintf("%02X-%02X", first[0], first[1]))
		}
	}
	s.Plugin, s.Network = cmp.Or(s.Plugin, plugin), cmp.Or(s.Network, dev.Name)
	if len(s.Cluster) == 0 {
		s.Cluster = slices.DeleteFunc([]netip.Prefix{config.V4.Prefix, config.V6.Prefix}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	return nil
}

// networkOf returns the network of an address of this machine, nil if no interface has
// the address.
func networkOf(snapshot underlay.Snapshot, ip netip.Addr) []netip.Prefix {
	for _, in := range snapshot.Interfaces {
		for _, a := range in.Addrs {
			if a.IP == ip && a.Net.IsValid() {
				return []netip.Prefix{a.Net}
			}
		}
	}
	return nil
}
