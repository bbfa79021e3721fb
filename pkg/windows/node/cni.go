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
	"flannel/pkg/conf/netconf"
	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
	"flannel/subnet/kube"
)

// CNISources are the sources of the values in a CNI configuration.
type CNISources struct {
	NetConf       func(context.Context) ([]byte, error) // reads the raw network configuration
	NetConfName   string                                // for errors
	NetConfRemote bool                                  // it is in etcd, which may be unreachable
	Backends      netconf.Backends
	SubnetFile    string        // finds the status socket of the daemon
	API           *kube.Options // nil: no Kubernetes API is configured
	// Within bounds the request to etcd, and that to the Kubernetes API. 0: 3 seconds.
	Within time.Duration
	HNS    *hns.Client // nil: none
	// KubeProxyDSR reports whether a kube-proxy runs on this machine with direct server return;
	// known is false if none runs, or its command line does not say so. nil: not known.
	KubeProxyDSR func() (dsr, known bool)
	// Underlay reads the interfaces of this machine.
	Underlay func() (underlay.Snapshot, error)
	Log      *slog.Logger
}

// Complete sets the fields of s that are not set:
//
//	plugin, HNS network, pod networks, MAC prefix   network configuration
//	the node's own addresses                        daemon, if it runs
//	networks of the nodes                           adapter with that address
//	networks of Services                            Kubernetes API
//	encapsulation overhead (if negative)            the MTU of that adapter
//
// It also turns LoopbackDSR off if HNS lacks DSR, where the sdn plugins fail with it and the
// others exhaust the ports (plugins#613). A kube-proxy that runs without DSR does not need
// it: LoopbackDSR is off then, too. If HNS does not answer, it stays.
// HNS may refuse the options in doubt: see TryInHNS.
// A field stays empty if its source does not have it; then conflist.Make asks for the
// flag. The error says why the network configuration, the daemon or the API could not be used.
func (n CNISources) Complete(ctx context.Context, s *conflist.Spec) (doubt conflist.Options, err error) {
	remote := cmp.Or(n.Within, 3*time.Second)
	netConfErr := n.fromNetConf(ctx, remote, s)
	s.MACPrefix = cmp.Or(s.MACPrefix, "0E-2A") // the default of the plugin and of HNS
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var daemonErr error
	if !s.ManagementIP.IsValid() || !s.ManagementIP6.IsValid() {
		r, err := status.Ask(ctx, status.Socket(n.SubnetFile))
		if err == nil && r.Node != nil && len(r.Node.Underlay.Addrs) > 0 {
			addrs := r.Node.Underlay.Addrs
			if !s.ManagementIP.IsValid() {
				s.ManagementIP = addrs[0]
			}
			if last := addrs[len(addrs)-1]; last.Is6() && !s.ManagementIP6.IsValid() {
				s.ManagementIP6 = last
			}
		}
		if !s.ManagementIP.IsValid() {
			daemonErr = noAddress(err)
		}
	}
	if n.HNS != nil {
		if version, err := n.HNS.Version(ctx); err == nil && !version.Features().DSR {
			s.LoopbackDSR = false
		}
	}
	if s.LoopbackDSR && n.KubeProxyDSR != nil {
		if dsr, known := n.KubeProxyDSR(); known && !dsr {
			s.LoopbackDSR = false
		}
	}
	snapshot, err := n.Underlay()
	if err == nil && len(s.Management) == 0 {
		s.Management = networkOf(snapshot, s.ManagementIP)
	}
	if s.EncapOverhead < 0 {
		s.EncapOverhead = encapOverhead(snapshot, s)
		doubt.EncapOverhead = s.EncapOverhead > 0
	}
	doubt.LoopbackDSR = s.LoopbackDSR && s.API != 1 // version 2 alone was reported to refuse it
	var servicesErr error
	if len(s.Services) == 0 && n.API != nil && netConfErr == nil {
		ctx, cancel := context.WithTimeout(ctx, remote)
		defer cancel()
		s.Services, servicesErr = kube.ServiceNetworks(ctx, *n.API)
	}
	s.Services = ofFamilies(s.Services, s.Cluster)
	return doubt, errors.Join(netConfErr, daemonErr, servicesErr)
}

// noAddress is the error if only the daemon could say which address the node has, and
// does not. err is its answer's.
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

// ofFamilies removes the networks of a family that no pod network has: on an
// overlay, IPv6 networks of Services are not usable.
func ofFamilies(networks, pods []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(networks, func(p netip.Prefix) bool {
		return len(pods) > 0 && !slices.ContainsFunc(pods, func(pod netip.Prefix) bool { return pod.Addr().Is4() == p.Addr().Is4() })
	})
}

// askWithin bounds the requests on this machine: to the daemon and to HNS.
const askWithin = 10 * time.Second

// fromNetConf sets what follows from the network configuration and its backend. If
// the configuration is in etcd, it reads it only if plugin, HNS network or pod
// networks are not set, since etcd may be unreachable.
func (n CNISources) fromNetConf(ctx context.Context, within time.Duration, s *conflist.Spec) error {
	if s.Plugin != "" && s.Network != "" && len(s.Cluster) > 0 && n.NetConfRemote {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	raw, err := n.NetConf(ctx)
	if err != nil {
		return fmt.Errorf("%w; or set --plugin, --network-name and --cluster-cidr", err)
	}
	config, maker, _, err := n.Backends.Parse("windows", raw)
	if err != nil {
		return fmt.Errorf("%s is invalid: %w", n.NetConfName, err)
	}
	// Name and MAC prefix do not depend on the node, but the backend needs some MTU.
	dev, err := hnsNetwork(maker, backend.Node{Underlay: underlay.Link{MTU: 1500}, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return fmt.Errorf("%s: %w", n.NetConfName, err)
	}
	plugin := "win-bridge" // the CNI project's
	if overlay, ok := dev.Kind.(dataplane.Overlay); ok {
		plugin = "win-overlay"
		if first := overlay.MACs[0]; first != (mac.Addr{}) {
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
