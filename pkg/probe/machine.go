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
	"time"

	"flannel/pkg/conf"
	"flannel/pkg/doctor"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/node"
)

// machine reads a Windows machine; in tests, a simulated one. Each method is a probe, on a
// goroutine of its own: its result is a fact of the doctor's Snapshot, and its error the reason
// why the fact is unknown.
type machine struct {
	client    *hns.Client // of the Host Networking Service
	stack     hns.Stack   // the IP stack: adapters, routes
	firewall  *hns.FirewallClient
	processes func() ([]process, error)
}

// probes returns the probes for Windows.
func (m machine) probes(o Options, s *doctor.Snapshot) []probe {
	w := &s.Windows
	return []probe{
		factProbe(&s.Processes, withoutContext(func() ([]doctor.Process, error) { return m.daemons(o.Commands) })),
		factProbe(&w.HNS, m.version),
		factProbe(&w.Networks, m.networks),
		factProbe(&w.Ghosts, m.ghosts),
		factProbe(&w.Adapters, withoutContext(m.adapters)),
		factProbe(&w.KubeProxy, withoutContext(m.kubeProxy)),
		factProbe(&w.SourceVIP, withoutContext(func() (netip.Addr, error) {
			v, err := node.ReadVIP(o.VIPFile)
			return v.Addr, err
		})),
		factProbe(&w.Reserved, withoutContext(func() ([]netip.Addr, error) { return reserved(o) })),
		factProbe(&w.Routes, withoutContext(m.routes)),
		factProbe(&w.Programs, withoutContext(m.programs)),
		factProbe(&w.LeftFiles, withoutContext(func() ([]string, error) { return existing(o.LeftFiles) })),
		factProbe(&w.Firewall, m.readFirewall),
		factProbe(&w.LostPods, func(ctx context.Context) ([]string, error) { return m.lostPods(ctx, o.PodResults) }),
		factProbe(&w.Lost, func(ctx context.Context) (doctor.LostSettings, error) { return m.lost(ctx, o.JournalFile) }),
		factProbe(&w.Category, func(ctx context.Context) (doctor.Category, error) { return m.category(ctx, o.JournalFile) }),
	}
}

// lostPods returns the names of running pods whose namespace has no endpoint at two looks: a
// pod that is being deleted has none for a moment. dir has the CNI results of pods
// (Options.PodResults).
func (m machine) lostPods(ctx context.Context, dir string) ([]string, error) {
	first, err := m.podsWithoutEndpoint(ctx, dir)
	if len(first) == 0 || err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(betweenLooks):
	}
	second, err := m.podsWithoutEndpoint(ctx, dir)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(second, func(name string) bool { return !slices.Contains(first, name) }), nil
}

// betweenLooks is longer than the removal of a pod usually takes, and leaves the lists time within Options.Timeout.
const betweenLooks = 2 * time.Second

// podsWithoutEndpoint is one look.
func (m machine) podsWithoutEndpoint(ctx context.Context, dir string) ([]string, error) {
	pods, err := hns.ReadPods(dir)
	if len(pods) == 0 || err != nil {
		return nil, err
	}
	networks, err := m.client.Networks(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range networks {
		more, err := m.client.EndpointIDs(ctx, n.ID)
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	namespaces, err := m.client.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	endpoints := hns.NewPodEndpoints(ids, namespaces) // which pod has which endpoint
	return hns.PodNames(slices.DeleteFunc(pods, func(p hns.Pod) bool {
		id, hasNamespace := endpoints.Of(p)
		return id != "" || !hasNamespace // whose namespace is gone has ended, or is ending
	})), nil
}

// version reads the version of HNS. An error of HNS is the Problem, so that the
// check fails and is not skipped.
func (m machine) version(ctx context.Context) (doctor.HNS, error) {
	v, err := m.client.Version(ctx)
	switch {
	case errors.Is(err, context.Canceled): // by the user; after the deadline, HNS does not answer
		return doctor.HNS{}, err
	case err != nil:
		return doctor.HNS{Problem: err.Error()}, nil
	}
	return doctor.HNS{Major: v.Major, Minor: v.Minor}, nil
}

// ghosts reads the networks that only the older API of HNS lists: HNS refuses to create a
// network with the name of one.
func (m machine) ghosts(ctx context.Context) ([]doctor.HNSNetwork, error) {
	ghosts, err := m.client.Ghosts(ctx)
	found := []doctor.HNSNetwork{}
	for _, n := range ghosts {
		found = append(found, doctor.HNSNetwork{Name: n.Name, Type: n.Type})
	}
	return found, err
}

// networks reads the networks, with the peers that they have: as policies, or
// before HNS 9.2 as remote endpoints. A network that is deleted meanwhile is omitted.
func (m machine) networks(ctx context.Context) ([]doctor.HNSNetwork, error) {
	networks, err := m.client.Networks(ctx)
	if err != nil {
		return nil, err
	}
	version, err := m.client.Version(ctx)
	if err != nil {
		return nil, err
	}
	var found []doctor.HNSNetwork
	for _, n := range networks {
		network := doctor.HNSNetwork{Name: n.Name, Type: n.Type, Adapter: n.Adapter, ManagementIP: n.ManagementIP,
			Port: int(n.VxlanPort)} // 0 on an L2Bridge
		for _, s := range n.Subnets {
			network.Subnets = append(network.Subnets, s.Prefix)
			network.VNI = max(network.VNI, int(s.VSID)) // HNS' name of the VNI; 0 on an L2Bridge
		}
		for _, p := range n.Policies {
			if p.IsRemoteSubnet() {
				r, _ := p.RemoteSubnet() // after an error r is zero, which the doctor counts as stale
				// Provider is the address of the peer's host.
				network.Remote = append(network.Remote, doctor.PeerRoute{Subnet: r.Prefix, Provider: r.Provider})
			}
		}
		switch n.Type {
		case hns.L2Bridge:
			if network.ManagementIP, err = m.client.ManagementIP(ctx, n.ID); err == nil {
				network.Endpoint, err = m.hostEndpoint(ctx, n)
			}
		case hns.Overlay:
			if !version.Features().RemoteSubnet { // before 9.2, there are no such policies
				err = m.addRemoteEndpoints(ctx, n, &network)
			}
		}
		switch { // err is that of the reads above; nil for other types
		case errors.Is(err, hns.ErrNotFound): // it was deleted
		case err != nil:
			return nil, err
		default:
			found = append(found, network)
		}
	}
	return found, nil
}

// addRemoteEndpoints adds the remote endpoints that flanneld creates before HNS
// 9.2, by reading all endpoints. The subnet is in the name, as in
// "flannel.4096_peer_10.244.3.0-24".
func (m machine) addRemoteEndpoints(ctx context.Context, n hns.Network, network *doctor.HNSNetwork) error {
	endpoints, err := m.client.Endpoints(ctx, n.ID)
	for _, e := range endpoints {
		if text, ok := strings.CutPrefix(e.Name, n.Name+"_peer_"); ok && e.Remote {
			p, _ := netip.ParsePrefix(strings.Replace(text, "-", "/", 1)) // zero counts as stale
			network.Remote = append(network.Remote, doctor.PeerRoute{Subnet: p, Provider: e.Provider})
		}
	}
	return err
}

// hostEndpoint returns the host's endpoint in a bridge network, with the
// forwarding of the interface that has its address; nil: there is no such
// endpoint or interface.
func (m machine) hostEndpoint(ctx context.Context, n hns.Network) (*doctor.HNSEndpoint, error) {
	endpoints, err := m.client.EndpointsNamed(ctx, hns.HostEndpoint(n.Name)) // the name with _ep
	if err != nil {
		return nil, err
	}
	adapters, err := m.stack.Adapters()
	if err != nil {
		return nil, fmt.Errorf("list adapters: %w", err)
	}
	for _, e := range endpoints {
		if !strings.EqualFold(e.Network, n.ID) {
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

// adapters reads all adapters except for loopback, with the forwarding of their
// interfaces.
func (m machine) adapters() ([]doctor.Adapter, error) {
	list, err := m.stack.Adapters()
	if err != nil {
		return nil, fmt.Errorf("list adapters: %w", err)
	}
	var adapters []doctor.Adapter
	for _, a := range list {
		if a.Loopback {
			continue
		}
		// Virtual: it is the host's adapter on a virtual switch, which has the settings of a physical one.
		adapter := doctor.Adapter{Name: a.Name, Index: a.Index, Virtual: a.Virtual(), DHCP: a.DHCP, DNS: a.DNS}
		if !a.Virtual() {
			adapter.VLAN, adapter.Kind = m.stack.VLAN(a.GUID), adapterKinds[a.Kind]
		}
		for _, ip := range a.Addrs {
			adapter.Addrs = append(adapter.Addrs, ip.Prefix.Addr())
		}
		if adapter.Forwarding, err = m.forwarding(a.Index); err != nil {
			return nil, err
		}
		adapters = append(adapters, adapter)
	}
	return adapters, nil
}

// adapterKinds are the kinds that the doctor looks at; others are "".
var adapterKinds = map[hns.Kind]doctor.AdapterKind{hns.WiFi: doctor.WiFiAdapter, hns.Tunnel: doctor.TunnelAdapter, hns.Team: doctor.TeamAdapter}

// forwarding reads the forwarding of an interface. It is off for a family that
// the interface does not have, and for an interface that does not exist.
func (m machine) forwarding(index int) (f doctor.Forwarding, _ error) {
	for v6, on := range map[bool]*bool{false: &f.V4, true: &f.V6} {
		settings, err := m.stack.Interface(index, v6)
		if err != nil && !errors.Is(err, hns.ErrNotFound) {
			return f, fmt.Errorf("read forwarding of interface %d: %w", index, err)
		}
		*on = settings.Forwarding
	}
	return f, nil
}

// daemons returns the daemons of flanneld and flannel.
func (m machine) daemons(commands []string) ([]doctor.Process, error) {
	processes, err := m.processes()
	if err != nil {
		return nil, err
	}
	var daemons []doctor.Process
	for _, p := range processes {
		if !p.isDaemon(commands) {
			continue
		}
		daemon := p.withoutSecrets()
		if p.argsErr != nil { // it may run a command, and be no daemon
			daemon.WhyNot = fmt.Sprintf("read its arguments: %v", p.argsErr)
		}
		daemons = append(daemons, daemon)
	}
	return daemons, nil
}

// kubeProxy returns the command line of kube-proxy without secrets; nil: it
// does not run.
func (m machine) kubeProxy() ([]string, error) {
	processes, err := m.processes()
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		if isKubeProxy(p.name) {
			if p.argsErr != nil {
				return nil, fmt.Errorf("read the arguments of %s: %w", p.name, p.argsErr)
			}
			shown, _ := conf.RedactArgs(p.args)
			return shown, nil
		}
	}
	return nil, nil
}

// reserved returns the addresses in host-local's directory for the network: the
// one in which flanneld source-vip has reserved the source VIP (the address from which
// kube-proxy sends on an overlay), otherwise the default one.
func reserved(o Options) ([]netip.Addr, error) {
	dir := o.DataDir
	v, err := node.ReadVIP(o.VIPFile)
	if err != nil {
		return nil, err // the reservation may be in another directory
	}
	if v.Store != "" {
		dir = filepath.Dir(v.Store)
	}
	addrs, err := node.AllocatedAddresses(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist", dir)
	}
	return addrs, err
}

// documents returns what the machine has, as files in JSON for a bundle, by name. A file that
// could not be read contains the error.
func (m machine) documents(ctx context.Context) map[string][]byte {
	version, versionErr := m.client.Version(ctx)
	networks, endpoints, err := m.client.Documents(ctx)
	namespaces, namespacesErr := m.client.NamespaceDocuments(ctx)
	adapters, adaptersErr := m.stack.Adapters()
	routes, routesErr := m.stack.Routes()
	files := map[string][]byte{}
	for name, part := range map[string]struct {
		value any
		err   error
	}{
		"hns-version.json":    {version, versionErr},
		"hns-networks.json":   {networks, err},
		"hns-endpoints.json":  {endpoints, err},
		"hns-namespaces.json": {namespaces, namespacesErr},
		"adapters.json":       {adapters, adaptersErr},
		"ip-routes.json":      {routes, routesErr},
	} {
		raw, err := json.MarshalIndent(part.value, "", "  ")
		if err = errors.Join(part.err, err); err != nil {
			raw = append(raw, "\n"+err.Error()...)
		}
		files[name] = append(raw, '\n')
	}
	return files
}
