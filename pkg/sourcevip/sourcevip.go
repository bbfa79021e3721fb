// Package sourcevip keeps the source VIP of Windows' kube-proxy on an overlay: an address of the node's subnet that no
// pod gets, from which kube-proxy sends what it balances. It is reserved where the CNI plugin host-local looks, has an
// endpoint in HNS, and stands in a file for whoever starts kube-proxy.
package sourcevip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/hns"
)

// VIP is what is published, as JSON.
type VIP struct {
	Addr    netip.Addr   `json:"sourceVIP,omitzero"` // on an L2Bridge there is none
	Subnet  netip.Prefix `json:"subnet"`             // the node's
	Network string       `json:"network"`            // name of the HNS network, kube-proxy's --network-name
	Store   string       `json:"store,omitzero"`     // host-local's directory for it
}

// ErrNotNeeded says that the node's network is no overlay.
var ErrNotNeeded = errors.New("kube-proxy needs no source VIP on an L2Bridge")

// Keeper keeps one node's. File is where it is published, DataDir where host-local has a directory for each network.
type Keeper struct {
	Client  *hns.Client
	Stack   hns.Stack
	File    string
	DataDir string
	Log     *slog.Logger
}

// endpointName is that of the endpoint in HNS; kube-proxy asks for it by the address.
const endpointName = "source-vip"

// Read returns what is published, the zero VIP if nothing is.
func Read(path string) (v VIP, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &v)
	}
	if err != nil {
		return VIP{}, fmt.Errorf("read the published source VIP: %w", err)
	}
	return v, nil
}

// Ensure makes all be as it shall for a node that has the subnet, and returns what is published then. Reservations of
// ours for another subnet end. What it waits for is an error: the network may be about to be made. With ErrNotNeeded it
// returns the subnet and the network alone.
func (k Keeper) Ensure(ctx context.Context, subnet netip.Prefix) (VIP, error) {
	old, err := Read(k.File)
	if err != nil {
		k.Log.Warn("making the source VIP anew", "error", err)
	}
	n, err := k.network(ctx, subnet)
	if errors.Is(err, ErrNotNeeded) {
		_, released := k.Release(ctx)
		return VIP{Subnet: subnet, Network: n.Name}, errors.Join(err, released)
	} else if err != nil {
		return VIP{}, err
	}
	v := VIP{Subnet: subnet, Network: n.Name, Store: filepath.Join(k.DataDir, n.Name)}
	if v.Addr, err = k.reserve(ctx, n, v); err != nil {
		return VIP{}, err
	}
	if old.Store != "" && old.Store != v.Store {
		if _, err := k.free(ctx, store(old.Store)); err != nil {
			return VIP{}, err
		}
	}
	if v == old {
		return v, nil
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(k.File), 0o755)
	}
	if err == nil {
		err = file.Replace(k.File, append(raw, '\n'))
	}
	if err != nil {
		return VIP{}, fmt.Errorf("publish the source VIP: %w", err)
	}
	k.Log.Info("kube-proxy's source VIP", "address", v.Addr, "before", old.Addr, "network", v.Network, "file", k.File)
	return v, nil
}

// network is the HNS network with the node's subnet: an older one of the same name is not it.
func (k Keeper) network(ctx context.Context, subnet netip.Prefix) (hns.Network, error) {
	all, err := k.Client.Networks(ctx)
	if err != nil {
		return hns.Network{}, err
	}
	for _, n := range all {
		if !slices.ContainsFunc(n.Subnets, func(s hns.Subnet) bool { return s.Prefix == subnet }) {
			continue
		}
		if n.Type != hns.Overlay {
			return n, ErrNotNeeded
		}
		return n, nil
	}
	return hns.Network{}, fmt.Errorf("waiting for the HNS network with this node's subnet %s, which the daemon makes", subnet)
}

// reserve holds host-local's lock to the end, so that no pod and no other of us comes between.
func (k Keeper) reserve(ctx context.Context, n hns.Network, v VIP) (vip netip.Addr, err error) {
	s := store(v.Store)
	patient, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	unlock, err := s.lock(patient)
	if err != nil {
		return vip, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	endpoints, err := k.Client.Endpoints(ctx, n.ID)
	if err != nil {
		return vip, err
	}
	ours, others, err := s.list()
	if err != nil {
		return vip, err
	}
	if vip, err = choose(v.Subnet, ours, taken(n, endpoints, others)); err != nil {
		return vip, err
	}
	if !slices.Contains(ours, vip) {
		if err := s.reserve(vip); err != nil {
			return vip, err
		}
	}
	var errs []error
	for _, a := range ours {
		if a != vip {
			k.Log.Info("released a source VIP that is no longer this node's", "address", a)
			errs = append(errs, s.release(a))
		}
	}
	return vip, errors.Join(append(errs, k.endpoint(ctx, n, vip, endpoints))...)
}

// lockWithin is how long to wait for host-local, which holds its lock for moments.
const lockWithin = 10 * time.Second

// taken tells what cannot be the source VIP: gateways, what host-local gave to pods, and what pods have in HNS though
// host-local does not know. kube-proxy's own endpoint for a source VIP has no name.
func taken(n hns.Network, endpoints []hns.Endpoint, others map[netip.Addr]bool) func(netip.Addr) bool {
	all := map[netip.Addr]bool{}
	for _, s := range n.Subnets {
		all[s.Gateway] = true
	}
	for _, e := range endpoints {
		for _, p := range e.IPs {
			if e.Remote || e.Name != "" && e.Name != endpointName {
				all[p.Addr()] = true
			}
		}
	}
	return func(a netip.Addr) bool { return all[a] || others[a] }
}

// choose keeps the address that was reserved, if it can be; else it is the first that is free from the second on.
func choose(subnet netip.Prefix, ours []netip.Addr, taken func(netip.Addr) bool) (netip.Addr, error) {
	for _, a := range ours {
		if subnet.Contains(a) && !taken(a) {
			return a, nil
		}
	}
	// The last is IPv4's broadcast address.
	for a := subnet.Masked().Addr().Next().Next(); subnet.Contains(a.Next()); a = a.Next() {
		if !taken(a) {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of %s is free for kube-proxy's source VIP", subnet)
}

// endpoint makes the endpoint as kube-proxy would, with the host's MAC address. One with the address that is there may
// be kube-proxy's, which serves as well.
func (k Keeper) endpoint(ctx context.Context, n hns.Network, vip netip.Addr, endpoints []hns.Endpoint) error {
	there := false
	for _, e := range endpoints {
		switch has := slices.ContainsFunc(e.IPs, func(p netip.Prefix) bool { return p.Addr() == vip }); {
		case has && !there:
			there = true
		case e.Name == endpointName:
			if err := k.Client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
				return fmt.Errorf("delete the endpoint of a former source VIP: %w", err)
			}
		}
	}
	if there {
		return nil
	}
	adapters, err := k.Stack.Adapters()
	if err != nil {
		return fmt.Errorf("list adapters: %w", err)
	}
	i := slices.IndexFunc(adapters, func(a hns.Adapter) bool {
		return slices.ContainsFunc(a.Addrs, func(one hns.Address) bool { return one.Prefix.Addr() == n.ManagementIP })
	})
	if i < 0 || !n.ManagementIP.IsValid() {
		return errors.New("waiting for the host's address on the network " + n.Name)
	}
	_, err = k.Client.CreateEndpoint(ctx, hns.Endpoint{Name: endpointName, Network: n.ID, MAC: adapters[i].MAC,
		IPs: []netip.Prefix{netip.PrefixFrom(vip, n.Subnets[0].Prefix.Bits())}})
	return err
}
