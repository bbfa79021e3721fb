package windows

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// remoteStore is the system's side of the table Driver.remotes: the remote
// endpoints that stand for peers where HNS has no RemoteSubnetRoute policies.
// kube-proxy makes remote endpoints on the network, too; ours have names such as
// flannel.4096_peer_10.244.2.0-24. Only the loop calls it, and only while there is a
// network (d.network is not nil).
type remoteStore struct{ d *Driver }

func (remoteStore) Name() string { return "remote-endpoints" }

// prefix is what the names of our endpoints on the network begin with.
func (s remoteStore) prefix() string { return s.d.network.Name + "_peer_" }

// endpointName replaces the slash, which HNS does not allow in a name.
func (s remoteStore) endpointName(p netip.Prefix) string {
	return s.prefix() + strings.Replace(p.String(), "/", "-", 1)
}

// endpoints returns our endpoints by the peers' subnets. An endpoint whose name does not
// contain a subnet has the zero Prefix, which nobody wants, so the table deletes it.
func (s remoteStore) endpoints(ctx context.Context) (map[netip.Prefix][]hns.Endpoint, error) {
	endpoints, err := s.d.client.Endpoints(ctx, s.d.network.ID)
	if err != nil {
		return nil, err
	}
	ours := map[netip.Prefix][]hns.Endpoint{}
	for _, e := range endpoints {
		if text, found := strings.CutPrefix(e.Name, s.prefix()); found && e.Remote {
			p, _ := netip.ParsePrefix(strings.Replace(text, "-", "/", 1))
			ours[p] = append(ours[p], e)
		}
	}
	return ours, nil
}

// List implements reconcile.Store.
func (s remoteStore) List(ctx context.Context) (map[netip.Prefix]remoteValue, error) {
	out := map[netip.Prefix]remoteValue{}
	if s.d.version.Features().RemoteSubnet || s.d.network.Type != hns.Overlay {
		return out, nil
	}
	ours, err := s.endpoints(ctx)
	for p, endpoints := range ours {
		out[p] = remoteValue{endpoints[0].Provider, endpoints[0].MAC}
		if len(endpoints) > 1 {
			out[p] = remoteValue{} // never wanted: Set replaces all of them by one
		}
	}
	return out, err
}

// Set implements reconcile.Store.
func (s remoteStore) Set(ctx context.Context, entries []reconcile.Entry[netip.Prefix, remoteValue]) []error {
	errs := s.Delete(ctx, entries)
	for i, e := range entries {
		if errs[i] == nil {
			_, errs[i] = s.d.client.CreateEndpoint(ctx, hns.Endpoint{
				Name: s.endpointName(e.Key), Network: s.d.network.ID, Remote: true,
				IPs: []netip.Prefix{e.Key}, Provider: e.Value.Provider, MAC: e.Value.MAC,
			})
		}
	}
	return errs
}

// Delete implements reconcile.Store.
func (s remoteStore) Delete(ctx context.Context, entries []reconcile.Entry[netip.Prefix, remoteValue]) []error {
	errs := make([]error, len(entries))
	ours, err := s.endpoints(ctx)
	for i, e := range entries {
		errs[i] = err
		for _, old := range ours[e.Key] {
			if err := s.d.client.DeleteEndpoint(ctx, old.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
				errs[i] = err
			}
		}
	}
	return errs
}
