package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"flannel/pkg/doctor"
	"flannel/pkg/hns"
	"flannel/pkg/redact"
	"flannel/pkg/sourcevip"
	"flannel/pkg/underlay"
)

// machine is a Windows machine, a real or a simulated one.
type machine struct {
	client    *hns.Client
	stack     hns.Stack
	processes func() ([]process, error)
}

// process is one that runs. Its arguments may be hidden from us.
type process struct {
	pid    int
	name   string
	args   []string // its name as it was called among them
	hidden error
}

func (m machine) looks(o Options) []probe {
	return []probe{
		one(func(s *doctor.Snapshot) *doctor.Fact[underlay.Snapshot] { return &s.Interfaces },
			func(context.Context) (underlay.Snapshot, error) {
				return underlay.FromStack(m.stack, underlay.Options{})
			}),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.Process] { return &s.Processes },
			func(context.Context) ([]doctor.Process, error) { return m.daemons(o.Commands) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[doctor.HNS] { return &s.Windows.HNS }, m.version),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.HNSNetwork] { return &s.Windows.Networks }, m.networks),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.Adapter] { return &s.Windows.Adapters },
			func(context.Context) ([]doctor.Adapter, error) { return m.adapters() }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]string] { return &s.Windows.KubeProxy },
			func(context.Context) ([]string, error) { return m.kubeProxy() }),
		one(func(s *doctor.Snapshot) *doctor.Fact[netip.Addr] { return &s.Windows.SourceVIP },
			func(context.Context) (netip.Addr, error) {
				v, err := sourcevip.Read(o.VIPFile)
				return v.Addr, err
			}),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]netip.Addr] { return &s.Windows.Reserved },
			func(context.Context) ([]netip.Addr, error) { return held(o) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.HNSRemote] { return &s.Windows.Routes },
			func(context.Context) ([]doctor.HNSRemote, error) { return m.routes() }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]string] { return &s.Windows.Programs },
			func(context.Context) ([]string, error) { return m.programs() }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]string] { return &s.Windows.Left },
			func(context.Context) ([]string, error) { return left(o.Left) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[doctor.Lost] { return &s.Windows.Lost },
			func(ctx context.Context) (doctor.Lost, error) { return m.lost(ctx, o.JournalFile) }),
	}
}

// version takes an HNS that fails or hangs for a finding, not for a look that failed.
func (m machine) version(ctx context.Context) (doctor.HNS, error) {
	v, _, err := m.client.Features(ctx)
	switch {
	case errors.Is(err, context.Canceled):
		return doctor.HNS{}, err
	case err != nil:
		return doctor.HNS{Problem: err.Error()}, nil
	}
	return doctor.HNS{Major: v.Major, Minor: v.Minor}, nil
}

func (m machine) networks(ctx context.Context) ([]doctor.HNSNetwork, error) {
	all, err := m.client.Networks(ctx)
	if err != nil {
		return nil, err
	}
	var seen []doctor.HNSNetwork
	for _, n := range all {
		one := doctor.HNSNetwork{Name: n.Name, Type: n.Type, Adapter: n.Adapter, ManagementIP: n.ManagementIP}
		for _, s := range n.Subnets {
			one.Subnets = append(one.Subnets, s.Prefix)
			one.VNI = max(one.VNI, int(s.VSID))
		}
		one.Port = int(n.VxlanPort)
		for _, p := range n.Policies {
			if p.IsRemoteSubnet() {
				r, _ := p.RemoteSubnet() // what cannot be read leads nowhere, and is one too many
				one.Remote = append(one.Remote, doctor.HNSRemote{Subnet: r.Prefix, Provider: r.Provider})
			}
		}
		switch n.Type {
		case hns.L2Bridge:
			if one.ManagementIP, err = m.client.ManagementIP(ctx, n.ID); err == nil {
				one.Endpoint, err = m.hostEndpoint(ctx, n)
			}
		case hns.Overlay:
			err = m.remoteEndpoints(ctx, n, &one)
		}
		switch {
		case errors.Is(err, hns.ErrNotFound): // it went while we looked
		case err != nil:
			return nil, err
		default:
			seen = append(seen, one)
		}
	}
	return seen, nil
}

// remoteEndpoints adds the endpoints by which an old HNS leads to peers; their names have the subnets.
func (m machine) remoteEndpoints(ctx context.Context, n hns.Network, to *doctor.HNSNetwork) error {
	all, err := m.client.Endpoints(ctx, n.ID)
	for _, e := range all {
		if text, ours := strings.CutPrefix(e.Name, n.Name+"_peer_"); ours && e.Remote {
			p, _ := netip.ParsePrefix(strings.Replace(text, "-", "/", 1)) // else one too many, too
			to.Remote = append(to.Remote, doctor.HNSRemote{Subnet: p, Provider: e.Provider})
		}
	}
	return err
}

// hostEndpoint finds the host's endpoint of a bridge and the interface that it became, nil where one of them is not
// there.
func (m machine) hostEndpoint(ctx context.Context, n hns.Network) (*doctor.HNSEndpoint, error) {
	endpoints, err := m.client.Endpoints(ctx, n.ID)
	if err != nil {
		return nil, err
	}
	adapters, err := m.stack.Adapters()
	if err != nil {
		return nil, fmt.Errorf("list adapters: %w", err)
	}
	for _, e := range endpoints {
		if e.Name != hns.HostEndpoint(n.Name) {
			continue
		}
		for _, a := range adapters {
			if slices.ContainsFunc(a.Addrs, func(have hns.Address) bool {
				return slices.ContainsFunc(e.IPs, func(p netip.Prefix) bool { return p.Addr() == have.Prefix.Addr() })
			}) {
				f, err := m.forwarding(a.Index)
				return &doctor.HNSEndpoint{Forwarding: f}, err
			}
		}
	}
	return nil, nil
}

func (m machine) adapters() ([]doctor.Adapter, error) {
	all, err := m.stack.Adapters()
	if err != nil {
		return nil, fmt.Errorf("list adapters: %w", err)
	}
	var seen []doctor.Adapter
	for _, a := range all {
		if a.Loopback {
			continue
		}
		one := doctor.Adapter{Name: a.Name, Index: a.Index, Virtual: a.Virtual(), DHCP: a.DHCP, DNS: a.DNS}
		for _, ip := range a.Addrs {
			one.Addrs = append(one.Addrs, ip.Prefix.Addr())
		}
		if one.Forwarding, err = m.forwarding(a.Index); err != nil {
			return nil, err
		}
		seen = append(seen, one)
	}
	return seen, nil
}

// forwarding takes a family that an adapter does not have, or an adapter that went, for one that forwards nothing.
func (m machine) forwarding(index int) (f doctor.Forwarding, err error) {
	for v6, on := range map[bool]*bool{false: &f.V4, true: &f.V6} {
		if *on, err = m.stack.Forwarding(index, v6); err != nil && !errors.Is(err, hns.ErrNotFound) {
			return f, fmt.Errorf("ask whether interface %d forwards: %w", index, err)
		}
	}
	return f, nil
}

func (m machine) daemons(commands []string) ([]doctor.Process, error) {
	all, err := m.processes()
	if err != nil {
		return nil, err
	}
	var seen []doctor.Process
	for _, p := range all {
		if args := p.args[min(1, len(p.args)):]; isDaemon(p.name, args, commands) {
			shown, _ := redact.Args(args)
			seen = append(seen, doctor.Process{PID: p.pid, Name: p.name, Args: shown})
		}
	}
	return seen, nil
}

// kubeProxy is its command line.
func (m machine) kubeProxy() ([]string, error) {
	all, err := m.processes()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if isKubeProxy(p.name) {
			if p.hidden != nil {
				return nil, fmt.Errorf("%s runs, but its arguments cannot be seen: %w", p.name, p.hidden)
			}
			shown, _ := redact.Args(p.args)
			return shown, nil
		}
	}
	return nil, nil
}

// held looks where flanneld reserved an address, if it did, or else where host-local usually keeps its own.
func held(o Options) ([]netip.Addr, error) {
	dir := o.DataDir
	if v, err := sourcevip.Read(o.VIPFile); err == nil && v.Store != "" {
		dir = filepath.Dir(v.Store)
	}
	all, err := sourcevip.Held(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s", dir)
	}
	return all, err
}

// documents are HNS's own, and the adapters and routes as the IP stack has them, as JSON. In the place of what cannot be
// had stands the reason.
func (m machine) documents(ctx context.Context) map[string][]byte {
	networks, endpoints, err := m.client.Documents(ctx)
	adapters, adaptersErr := m.stack.Adapters()
	routes, routesErr := m.stack.Routes()
	all := map[string][]byte{}
	for name, of := range map[string]struct {
		value any
		err   error
	}{"hns-networks.json": {networks, err}, "hns-endpoints.json": {endpoints, err}, "adapters.json": {adapters, adaptersErr}, "ip-routes.json": {routes, routesErr}} {
		raw, err := json.MarshalIndent(of.value, "", "  ")
		if err = errors.Join(of.err, err); err != nil {
			raw = append(raw, "\n"+err.Error()...)
		}
		all[name] = append(raw, '\n')
	}
	return all
}
