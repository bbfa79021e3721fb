package winnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/backend"
	"flannel/pkg/cniconf"
	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
	"flannel/pkg/netconf"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet/kube"
)

// CNISources are where that is known which a CNI configuration says of the node and its cluster.
type CNISources struct {
	NetConf     func(context.Context) ([]byte, error) // reads the raw network configuration
	NetConfName string                                // for errors
	NetConfFar  bool                                  // it is in etcd, which may be away
	Backends    netconf.Backends
	SubnetFile  string        // by which the daemon is asked
	API         *kube.Options // nil if nobody says where the API is
}

// Complete fills in what was not given, from the network configuration, the daemon, the machine and the cluster. What
// cannot be had stays empty, and is asked for by cniconf; the error is why the first and the last did not say it.
func (n CNISources) Complete(ctx context.Context, s *cniconf.Spec) error {
	noConf := n.fromNetConf(ctx, s)
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if !s.ManagementIP.IsValid() {
		if r, err := status.Ask(ctx, status.Socket(n.SubnetFile)); err == nil && r.Node != nil && len(r.Node.Underlay.Addrs) > 0 {
			s.ManagementIP = r.Node.Underlay.Addrs[0]
		}
	}
	if seen, err := underlay.Read(underlay.Options{}); err == nil && len(s.Management) == 0 {
		s.Management = linkOf(seen, s.ManagementIP)
	}
	var noServices error
	if len(s.Services) == 0 && n.API != nil {
		s.Services, noServices = kube.ServiceNetworks(ctx, *n.API)
	}
	s.Services = ofFamilies(s.Services, s.Cluster)
	return errors.Join(noConf, noServices)
}

// ofFamilies leaves out networks of a family that pods do not have: IPv6 on an overlay, whatever else the cluster has.
func ofFamilies(all, pods []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(all, func(p netip.Prefix) bool {
		return len(pods) > 0 && !slices.ContainsFunc(pods, func(have netip.Prefix) bool { return have.Addr().Is4() == p.Addr().Is4() })
	})
}

// askWithin bounds each question to another machine.
const askWithin = 10 * time.Second

// usualPlugin is the one of the CNI project for a kind of HNS network.
func usualPlugin(k dataplane.Kind) string {
	if _, overlay := k.(dataplane.Overlay); overlay {
		return "win-overlay"
	}
	return "win-bridge"
}

// fromNetConf takes from the network configuration what its backend makes of it. etcd is asked only if need be, since
// it may be away; a file costs nothing.
func (n CNISources) fromNetConf(ctx context.Context, s *cniconf.Spec) error {
	defer func() { s.MACPrefix = cmp.Or(s.MACPrefix, "0E-2A") }() // the plugin's own default, and HNS's
	if s.Plugin != "" && s.Network != "" && len(s.Cluster) > 0 && n.NetConfFar {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	raw, err := n.NetConf(ctx)
	if err != nil {
		return fmt.Errorf("%w; or give --plugin, --network-name and --cluster-cidr", err)
	}
	config, maker, _, err := n.Backends.Parse("windows", raw)
	if err != nil {
		return fmt.Errorf("%s cannot work: %w", n.NetConfName, err)
	}
	// Of the node, name and MAC prefix depend on nothing; an MTU must be there.
	dev, err := Network(maker, backend.Node{OS: "windows", Underlay: underlay.Link{MTU: 1500}, V4: config.V4.On(), V6: config.V6.On()})
	if err != nil {
		return fmt.Errorf("%s: %w", n.NetConfName, err)
	}
	s.Plugin, s.Network = cmp.Or(s.Plugin, usualPlugin(dev.Kind)), cmp.Or(s.Network, dev.Name)
	if len(s.Cluster) == 0 {
		s.Cluster = slices.DeleteFunc([]netip.Prefix{config.V4.Prefix, config.V6.Prefix}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	if overlay, ok := dev.Kind.(dataplane.Overlay); ok && overlay.MACs[0] != (mac.Addr{}) {
		first := overlay.MACs[0]
		s.MACPrefix = cmp.Or(s.MACPrefix, fmt.Sprintf("%02X-%02X", first[0], first[1]))
	}
	return nil
}

// linkOf is the network of an address of this machine.
func linkOf(seen underlay.Snapshot, ip netip.Addr) []netip.Prefix {
	for _, in := range seen.Interfaces {
		for _, a := range in.Addrs {
			if a.IP == ip && a.Net.IsValid() {
				return []netip.Prefix{a.Net}
			}
		}
	}
	return nil
}
