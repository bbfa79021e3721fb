package node

import (
	"encoding/json"
	"net/netip"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/windows/hns"
)

// natNode is a node with a network, whose pods get endpoints as the plugin creates them.
type natNode struct {
	*hnstest.Machine
	client  *hns.Client
	network hns.Network
	log     logtest.Log
}

func newNATNode(t *testing.T, version hns.Version, subnet string) *natNode {
	t.Helper()
	m := hnstest.NewFor(t)
	m.Turn(func(k *hnstest.Knobs) { k.Version = version })
	n := &natNode{Machine: m, client: hns.NewClient(m, hns.Timing{})}
	p := netip.MustParsePrefix(subnet)
	var err error
	n.network, err = n.client.CreateNetwork(t.Context(), hns.Network{Name: "flannel.4096", Type: hns.Overlay, Adapter: "Ethernet",
		Subnets: []hns.Subnet{{Prefix: p, Gateway: p.Addr().Next(), VSID: 4096}}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// configure returns the configuration that cni-conf writes. dsr is that of a running kube-proxy, nil: none runs.
func (n *natNode) configure(t *testing.T, dsr *bool) (conf struct{ Delegate natDelegate }) {
	t.Helper()
	s := conflist.Spec{Plugin: "win-overlay", API: 2, Network: n.network.Name, Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ManagementIP: netip.MustParseAddr("10.99.0.2"), LoopbackDSR: true}
	from := CNISources{NetConfRemote: true, HNS: n.client, Underlay: noUnderlay, Log: n.log.Logger(),
		KubeProxyDSR: func() (bool, bool) { return dsr != nil && *dsr, dsr != nil }}
	if err := from.Complete(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	text, err := conflist.Make(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		t.Fatal(err)
	}
	return conf
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

// A pod has two policies OutBoundNAT at most, with which rke2 works: the configuration's and, with loopbackDSR, the plugin's.
func TestOutBoundNAT(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 2 })
	conf := n.configure(t, nil).Delegate
	if !conf.LoopbackDSR || len(conf.Policies) == 0 || conf.Policies[0].Value.Type != "OutBoundNAT" {
		t.Errorf("%+v", conf)
	}
	if err := n.pod(t, conf, "10.244.1.7"); err != nil {
		t.Errorf("no pod can start: %v", err)
	}
}

// loopbackDSR is for direct server return: without it, pods take the ports that load balancers need.
func TestPortsForLoadBalancers(t *testing.T) {
	on, off := true, false
	for name, c := range map[string]struct {
		version hns.Version
		dsr     *bool
		want    bool
	}{
		"HNS without DSR": {hns.Version{Major: 9, Minor: 2}, nil, false}, "kube-proxy without DSR": {hns.Version{Major: 13}, &off, false},
		"kube-proxy with DSR": {hns.Version{Major: 13}, &on, true}, "no kube-proxy": {hns.Version{Major: 13}, nil, true},
	} {
		n := newNATNode(t, c.version, "10.244.1.0/24")
		n.Turn(func(k *hnstest.Knobs) { k.PortPool = 2 })
		conf := n.configure(t, c.dsr).Delegate
		if conf.LoopbackDSR != c.want {
			t.Errorf("%s: loopbackDSR %t, want %t", name, conf.LoopbackDSR, c.want)
		}
		for _, ip := range []string{"10.244.1.7", "10.244.1.8"} {
			if err := n.pod(t, conf, ip); err != nil {
				t.Fatal(err)
			}
		}
		program := n.Begin()
		if _, code := program.HNS("HcnCreateLoadBalancer", "7804602a-559f-427d-9974-eeaf95aeb5c5", `{"FrontendVIPs":["10.96.0.10"]}`); code != 0 {
			t.Errorf("%s: load balancer: %#x", name, uint32(code))
		}
		program.End()
	}
}
