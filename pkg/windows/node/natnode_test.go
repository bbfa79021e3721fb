package node

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// natNode is a node with the networks of prepare and of the daemon, whose pods get endpoints as the plugin creates them.
type natNode struct {
	*hnstest.Machine
	client  *hns.Client
	network hns.Network
	log     logtest.Log
	file    string
}

func newNATNode(t *testing.T, version hns.Version, subnet string) *natNode {
	t.Helper()
	m := hnstest.NewFor(t)
	m.Turn(func(k *hnstest.Knobs) { k.Version = version })
	n := &natNode{Machine: m, client: hns.NewClient(m, hns.Timing{}), file: filepath.Join(t.TempDir(), "10-flannel.conf")}
	n.create(t, dataplane.SwitchNetwork, "192.168.255.0/30", 9999)
	n.network = n.create(t, "flannel.4096", subnet, 4096)
	return n
}

func (n *natNode) create(t *testing.T, name, subnet string, vni uint32) hns.Network {
	t.Helper()
	p := netip.MustParsePrefix(subnet)
	network, err := n.client.CreateNetwork(t.Context(), hns.Network{Name: name, Type: hns.Overlay, Adapter: "Ethernet",
		Subnets: []hns.Subnet{{Prefix: p, Gateway: p.Addr().Next(), VSID: vni}}})
	if err != nil {
		t.Fatal(err)
	}
	return network
}

// spec returns what cni-conf begins with.
func (n *natNode) spec() conflist.Spec {
	return conflist.Spec{Plugin: "win-overlay", API: 2, Network: n.network.Name, Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ManagementIP: netip.MustParseAddr("10.99.0.2"), LoopbackDSR: true}
}

func (n *natNode) sources() CNISources {
	return CNISources{NetConfRemote: true, HNS: n.client, Underlay: noUnderlay, Log: n.log.Logger()}
}

// configure returns the configuration that cni-conf writes. dsr is that of a running kube-proxy, nil: none runs.
func (n *natNode) configure(t *testing.T, dsr *bool) (conf struct{ Delegate natDelegate }) {
	t.Helper()
	from := n.sources()
	from.KubeProxyDSR = func() (bool, bool) { return dsr != nil && *dsr, dsr != nil }
	text, _ := write(t, from, n.spec(), n.file, false)
	if err := json.Unmarshal(text, &conf); err != nil {
		t.Fatal(err)
	}
	return conf
}

// write does what cni-conf does: it returns the file, and the result.
func write(t *testing.T, from CNISources, s conflist.Spec, to string, force bool) (text []byte, result string) {
	t.Helper()
	doubt, err := from.Complete(t.Context(), &s)
	if err != nil {
		t.Fatal(err)
	}
	f, err := conflist.Open(to, conflist.Record(to), s, doubt, force)
	if err != nil {
		t.Fatal(err)
	}
	done, err := f.Put(from.TryInHNS(t.Context(), s, doubt, f))
	if err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(to); err != nil {
		t.Fatal(err)
	}
	return text, done.Result
}

type natDelegate struct {
	LoopbackDSR bool
	IPMasq      *bool
	Policies    []struct{ Value hns.Policy }
}

// pod creates the endpoint of a pod as win-overlay does: with the policies of the configuration, with one for loopbackDSR, and
// with one of its own unless ipMasq is false.
func (n *natNode) pod(t *testing.T, d natDelegate, ip string) error {
	t.Helper()
	e := hns.Endpoint{Name: ip, Network: n.network.ID, IPs: []netip.Prefix{netip.MustParsePrefix(ip + "/24")}}
	nat := func(key string, value string) {
		settings, err := json.Marshal(map[string][]string{key: {value}})
		if err != nil {
			t.Fatal(err)
		}
		e.Policies = append(e.Policies, hns.Policy{Type: "OutBoundNAT", Settings: settings})
	}
	for _, p := range d.Policies {
		e.Policies = append(e.Policies, p.Value)
	}
	if d.LoopbackDSR {
		nat("Destinations", ip)
	}
	if d.IPMasq == nil || *d.IPMasq {
		nat("Exceptions", "10.244.1.0/24")
	}
	_, err := n.client.CreateEndpoint(t.Context(), e)
	return err
}

// changes returns how many calls of HNS changed something, or tried to, since the last call.
func (n *natNode) changes() (count int) {
	for _, c := range n.Log() {
		if c.Changes {
			count++
		}
	}
	n.ForgetLog()
	return count
}
