package node

// A VIPKeeper reserves and publishes addresses of a Windows node's subnet. On
// an L2Bridge they are those of the host's own endpoint (bridge.go). On an overlay it
// is kube-proxy's source VIP, an address that no pod has: kube-proxy uses it as the
// source address of the connections that it balances. The source VIP is
//
//   - reserved in the directory of the CNI plugin host-local, so that no pod gets it,
//   - the address of an endpoint in HNS, as kube-proxy needs it,
//   - written into a file, for the program that starts kube-proxy.
//
// Example: the node's subnet is 10.244.1.0/24 on the HNS network flannel.4096.
// 10.244.1.1 is the gateway, so 10.244.1.2 is the source VIP if no pod has it. Then
// there are the file /var/lib/cni/networks/flannel.4096/10.244.1.2, the endpoint
// source-vip with 10.244.1.2/24, and source-vip.json with both and the network.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"flannel/pkg/file"
	"flannel/pkg/windows/hns"
)

// VIP is the published JSON document. The zero VIP means that none is published.
type VIP struct {
	Addr    netip.Addr   `json:"sourceVIP,omitzero"` // zero on an L2Bridge
	Subnet  netip.Prefix `json:"subnet"`             // of the node
	Network string       `json:"network"`            // name of the HNS network, kube-proxy's --network-name
	Store   string       `json:"store,omitzero"`     // host-local's directory for the network
	// Endpoint is the ID of the endpoint with Addr, by which the next Ensure reads it; "": not known.
	Endpoint string `json:"endpoint,omitzero"`
}

// errVIPNotNeeded means that the node's network is not an overlay, and that all else is in place.
// The callers of Ensure take it for a success.
var errVIPNotNeeded = errors.New("kube-proxy needs no source VIP on an L2Bridge")

// errHostAddress means that host-local has given an address of the host's endpoint on an L2Bridge
// to a pod, and that all else is in place and published. The next Ensure tries again.
var errHostAddress = errors.New("a pod has the address of the host's endpoint")

// errFormerEndpoint means that the source VIP is in place and published, beside our endpoint
// with another address, which HNS has not deleted. The next Ensure tries again.
var errFormerEndpoint = errors.New("the endpoint of a former source VIP remains")

// VIPKeeper maintains the source VIP of one node. The daemon (node.KeepVIP), flanneld
// source-vip and flanneld node kube-proxy each make one and call Ensure again and again;
// host-local's lock keeps them apart. cleanup and source-vip --release call Release. A
// VIPKeeper has no state of its own: it is in HNS, in host-local's directory, and in File.
type VIPKeeper struct {
	Client  *hns.Client
	Stack   hns.Stack
	File    string // where the VIP is published
	DataDir string // of host-local: it has a directory for each network
	Log     *slog.Logger
}

// endpointName is the name of our endpoint. kube-proxy looks it up by its address.
const endpointName = hns.SourceVIPEndpoint

// ReadVIP returns the published VIP, the zero VIP if there is none, and after an error.
// Which errors there are, file.Unusable tells.
func ReadVIP(path string) (v VIP, err error) {
	err = file.ReadJSON(path, &v)
	if errors.Is(err, fs.ErrNotExist) {
		return VIP{}, nil
	}
	if err != nil {
		return VIP{}, fmt.Errorf("read the published source VIP: %w", err)
	}
	return v, nil
}

// Ensure reserves and publishes the source VIP of a node with this subnet, creates
// its endpoint, and returns it. What is in place stays; our reservations for another
// subnet are deleted. It does not wait: if the network does not exist yet, it fails,
// and the caller retries. errVIPNotNeeded means that the network is an L2Bridge, where
// the addresses of the host's endpoint are reserved instead; the VIP has no Addr then.
// The VIP is valid also with errHostAddress, likewise on an L2Bridge, and errFormerEndpoint.
func (k VIPKeeper) Ensure(ctx context.Context, subnet netip.Prefix) (VIP, error) {
	old, err := ReadVIP(k.File)
	switch {
	case file.Unusable(err):
		k.Log.Warn("cannot use the published source VIP, publishing it again", "error", err)
	case err != nil:
		return VIP{}, err // it has the directory in which the address is reserved
	}
	n, err := k.network(ctx, subnet)
	isBridge := errors.Is(err, errVIPNotNeeded)
	if err != nil && !isBridge {
		return VIP{}, err
	}
	v := VIP{Subnet: subnet, Network: n.Name}
	// The daemon, which reads the file, runs in another directory.
	if v.Store, err = filepath.Abs(filepath.Join(k.DataDir, n.Name)); err != nil {
		return VIP{}, err
	}
	if isBridge {
		return k.ensureBridge(ctx, n, v, old)
	}
	v, err = k.reserve(ctx, n, v, old.Endpoint)
	if err != nil && !errors.Is(err, errFormerEndpoint) {
		return VIP{}, err
	}
	if err := k.publish(ctx, v, old); err != nil {
		return VIP{}, err
	}
	return v, err
}

// publish writes the file if it differs, and first releases what is reserved in another
// directory, that of an earlier network. old is what the file has. The directory of v exists.
func (k VIPKeeper) publish(ctx context.Context, v, old VIP) error {
	if isOther, err := otherDir(old.Store, v.Store); err != nil {
		return fmt.Errorf("look at the former directory of reservations: %w", err)
	} else if isOther {
		if _, err := releaseAll(ctx, hostLocal(old.Store), false); err != nil {
			return err
		}
	}
	if v == old {
		return nil
	}
	if err := file.PutJSON(k.File, v); err != nil {
		return fmt.Errorf("publish the source VIP: %w", err)
	}
	k.Log.Info("published the addresses that are reserved for this node", "source_vip", v.Addr, "before", old.Addr, "network", v.Network, "file", k.File)
	return nil
}

// otherDir reports whether a former directory exists and is another one than the existing
// dir. Both may be one directory with two names: C:\var and /var, c:\var, a junction.
func otherDir(former, dir string) (bool, error) {
	old, err := os.Stat(former)
	if former == "" || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	info, err := os.Stat(dir)
	return err == nil && !os.SameFile(old, info), err
}

// network returns the HNS network with the node's subnet. The name does not
// identify it: an older network with another subnet may have the same name.
func (k VIPKeeper) network(ctx context.Context, subnet netip.Prefix) (hns.Network, error) {
	networks, err := k.Client.Networks(ctx)
	if err != nil {
		return hns.Network{}, err
	}
	for _, n := range networks {
		if !slices.ContainsFunc(n.Subnets, func(s hns.Subnet) bool { return s.Prefix == subnet }) {
			continue
		}
		if n.Type != hns.Overlay {
			return n, errVIPNotNeeded
		}
		return n, nil
	}
	return hns.Network{}, fmt.Errorf("waiting for the HNS network with this node's subnet %s, which the daemon creates", subnet)
}

// errNotInPlace means that reserveLocked has to know all endpoints of the network, and has
// changed nothing.
var errNotInPlace = errors.New("the source VIP is not in place")

// reserve reserves the address, deletes our other reservations, and creates the
// endpoint. It returns v with the address and the endpoint. endpoint is the ID of the one
// that was published last, "" if there is none. There can be thousands of endpoints, so
// reserve reads all of them only if the source VIP is not in place: reserved, and the
// address of an endpoint that is known (known). It reads these endpoints, or all of them,
// before it takes host-local's lock, for which plugins wait.
func (k VIPKeeper) reserve(ctx context.Context, n hns.Network, v VIP, endpoint string) (VIP, error) {
	const known, all = false, true // which endpoints reserveLocked gets
	endpoints, err := k.known(ctx, n, endpoint)
	if err != nil {
		return VIP{}, err
	}
	reserved, err := k.reserveLocked(ctx, n, v, endpoints, known)
	if !errors.Is(err, errNotInPlace) {
		return reserved, err
	}
	if endpoints, err = k.Client.Endpoints(ctx, n.ID); err != nil {
		return VIP{}, err
	}
	return k.reserveLocked(ctx, n, v, endpoints, all)
}

// known returns the endpoint with this ID or, if it is not on the network, those
// with our name.
func (k VIPKeeper) known(ctx context.Context, n hns.Network, id string) ([]hns.Endpoint, error) {
	if id != "" {
		e, err := k.Client.Endpoint(ctx, id)
		if err == nil && strings.EqualFold(e.Network, n.ID) {
			return []hns.Endpoint{e}, nil
		} else if err != nil && !errors.Is(err, hns.ErrNotFound) {
			return nil, err
		}
	}
	named, err := k.Client.EndpointsNamed(ctx, endpointName)
	return slices.DeleteFunc(named, func(e hns.Endpoint) bool { return !strings.EqualFold(e.Network, n.ID) }), err
}

// reserveLocked does what reserve does, given some endpoints. If these are only the known
// ones (all is false), it returns errNotInPlace unless one of them has an address that is
// ours. It holds host-local's lock all the time, so that neither a pod nor another flanneld
// process can take the address. Before it chooses an address, it reads the known endpoints
// with the lock: another process may have created ours meanwhile. On an HNS that cannot look
// for a name, that reads all of them.
func (k VIPKeeper) reserveLocked(ctx context.Context, n hns.Network, v VIP, endpoints []hns.Endpoint, all bool) (_ VIP, err error) {
	s := hostLocal(v.Store)
	unlock, err := s.lock(ctx)
	if err != nil {
		return VIP{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if all {
		named, err := k.known(ctx, n, "")
		if err != nil {
			return VIP{}, err
		}
		endpoints = append(named, slices.DeleteFunc(endpoints, func(e hns.Endpoint) bool { return e.Name == endpointName })...)
	}
	ours, others, err := s.list()
	if err != nil {
		return VIP{}, err
	}
	unusable := takenAddresses(n, endpoints, others)
	// In place is what is reserved for us and the address of an endpoint.
	inPlace := slices.DeleteFunc(slices.Clone(ours), func(a netip.Addr) bool {
		return unusable[a] || !v.Subnet.Contains(a) || !slices.ContainsFunc(endpoints, func(e hns.Endpoint) bool { return hasAddress(e, a) })
	})
	if len(inPlace) == 0 && !all {
		return VIP{}, errNotInPlace
	}
	for range maxRefused {
		// What is in place stays, else what is reserved for us.
		if v.Addr, err = chooseVIP(v.Subnet, append(inPlace, ours...), unusable); err != nil {
			return VIP{}, err
		}
		if err := s.reserve(v.Addr, vipOwner); err != nil {
			return VIP{}, err
		}
		v.Endpoint, err = k.ensureEndpoint(ctx, n, v.Addr, endpoints)
		if errors.Is(err, errFormerEndpoint) {
			return v, err // its address stays reserved, too: HNS would refuse it to a pod
		}
		if !errors.Is(err, hns.ErrAddressInUse) {
			return v, errors.Join(k.releaseOthers(s, ours, []netip.Addr{v.Addr}), err) // err may be nil
		}
		// HNS knows of somebody whom it does not list (kubernetes#100962). Nobody
		// uses the address for kube-proxy then, so pods may have it.
		k.Log.Warn("HNS refuses the address as the source VIP, trying the next one", "address", v.Addr, "error", err)
		unusable[v.Addr] = true
		if releaseErr := s.release(v.Addr); releaseErr != nil {
			return VIP{}, errors.Join(err, releaseErr)
		}
	}
	return VIP{}, err // HNS has refused maxRefused addresses
}

// hasAddress reports whether an endpoint has an address.
func hasAddress(e hns.Endpoint, a netip.Addr) bool {
	return slices.ContainsFunc(e.IPs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// maxRefused bounds how many addresses HNS may refuse in one call, since host-local
// waits meanwhile.
const maxRefused = 16

// releaseOthers releases our reservations that are not wanted.
func (k VIPKeeper) releaseOthers(s hostLocal, ours, want []netip.Addr) error {
	var errs []error
	for _, a := range ours {
		if !slices.Contains(want, a) {
			k.Log.Info("released an address that is no longer reserved for this node", "address", a)
			errs = append(errs, s.release(a))
		}
	}
	return errors.Join(errs...)
}

// takenAddresses returns the addresses that cannot be the source VIP: gateways, addresses
// that host-local gave to pods (others), and those that pods, or remote endpoints, have only
// in HNS. An endpoint without a name is kube-proxy's own for its source VIP, and does not
// count.
func takenAddresses(n hns.Network, endpoints []hns.Endpoint, others map[netip.Addr]bool) map[netip.Addr]bool {
	addrs := maps.Clone(others)
	for _, s := range n.Subnets {
		addrs[s.Gateway] = true
	}
	for _, e := range endpoints {
		for _, p := range e.IPs {
			if e.Remote || e.Name != "" && e.Name != endpointName {
				addrs[p.Addr()] = true
			}
		}
	}
	return addrs
}

// chooseVIP returns the first of ours, which are reserved for us, that is not taken, else the
// first free one, from the second of the subnet on: the first is the gateway's.
func chooseVIP(subnet netip.Prefix, ours []netip.Addr, taken map[netip.Addr]bool) (netip.Addr, error) {
	for _, a := range ours {
		if subnet.Contains(a) && !taken[a] {
			return a, nil
		}
	}
	// The loop does not reach the last address, which is IPv4's broadcast address.
	for a := subnet.Masked().Addr().Next().Next(); subnet.Contains(a.Next()); a = a.Next() {
		if !taken[a] {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of %s is free for kube-proxy's source VIP", subnet)
}

// ensureEndpoint creates the endpoint as kube-proxy would, with the host's MAC
// address, deletes ours for other addresses, and returns its ID. An existing endpoint
// with the address is left as it is, also if kube-proxy created it. With
// errFormerEndpoint, the ID is "", so that the next Ensure looks for all of ours.
func (k VIPKeeper) ensureEndpoint(ctx context.Context, n hns.Network, vip netip.Addr, endpoints []hns.Endpoint) (id string, err error) {
	var former []error
	for _, e := range endpoints {
		switch {
		case id == "" && hasAddress(e, vip):
			id = e.ID
		case e.Name == endpointName:
			if err := k.Client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
				former = append(former, fmt.Errorf("%w: delete the one with %v: %w", errFormerEndpoint, e.IPs, err))
			}
		}
	}
	if id == "" {
		if id, err = k.createEndpoint(ctx, n, vip); err != nil {
			return "", err
		}
	}
	if len(former) > 0 {
		return "", errors.Join(former...)
	}
	return id, nil
}

// createEndpoint creates the endpoint with the source VIP. n is an overlay with the node's
// subnet, which is its only one.
func (k VIPKeeper) createEndpoint(ctx context.Context, n hns.Network, vip netip.Addr) (id string, err error) {
	adapters, err := k.Stack.Adapters()
	if err != nil {
		return "", fmt.Errorf("list adapters: %w", err)
	}
	i := slices.IndexFunc(adapters, func(a hns.Adapter) bool {
		return slices.ContainsFunc(a.Addrs, func(addr hns.Address) bool { return addr.Prefix.Addr() == n.ManagementIP })
	})
	if i < 0 || !n.ManagementIP.IsValid() {
		return "", errors.New("waiting for the host's address on the network " + n.Name)
	}
	made, err := k.Client.CreateEndpoint(ctx, hns.Endpoint{Name: endpointName, Network: n.ID, MAC: adapters[i].MAC,
		IPs: []netip.Prefix{netip.PrefixFrom(vip, n.Subnets[0].Prefix.Bits())}})
	return made.ID, err
}
