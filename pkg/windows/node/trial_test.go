package node

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
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
	f, err := conflist.Open(to, conflist.Record(to), force)
	if err != nil {
		t.Fatal(err)
	}
	s, refused := from.Try(t.Context(), s, doubt, f)
	conf, err := conflist.Make(s)
	if err != nil {
		t.Fatal(err)
	}
	done, err := f.Put(conf, refused)
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

// Where HNS refuses a pod's policies OutBoundNAT together, cni-conf leaves loopbackDSR out, so that pods start. Another
// refusal changes nothing. A run that changes nothing in the file changes nothing in HNS either, whether loopbackDSR is in
// the file or not.
func TestOutBoundNATRefused(t *testing.T) {
	for name, c := range map[string]struct {
		most   int
		fault  hns.Code // of trials; 0: none
		times  int      // of the fault; 0: of each trial
		want   bool     // loopbackDSR
		warned int
	}{
		"two": {2, 0, 0, true, 0}, "one": {1, 0, 0, false, 1}, "each endpoint": {0, hns.InvalidPolicy, 0, true, 0},
		"another reason": {0, hns.InvalidParameter, 1, true, 0}, "a policy that it does not know": {0, hns.InvalidPolicyType, 1, true, 0},
		"no answer": {0, hns.RPCServerUnavailable, 1, true, 0}, "address in use": {0, hns.AddressInUse, 1, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
			n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = c.most })
			if c.fault != 0 {
				n.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Match: trialEndpoint, Times: c.times, Code: c.fault})
			}
			n.ForgetLog()
			conf := n.configure(t, nil).Delegate
			if n.changes() == 0 {
				t.Error("there was no trial")
			}
			if conf.LoopbackDSR != c.want || n.log.Count("cause="+causeNAT) != c.warned {
				t.Errorf("loopbackDSR %t, want %t; logged\n%s", conf.LoopbackDSR, c.want, &n.log)
			}
			if left := n.Admin().Endpoints(); len(left) > 0 {
				t.Errorf("left behind: %s", left)
			}
			if err := n.pod(t, conf, "10.244.1.7"); err != nil {
				t.Errorf("no pod can start: %v", err)
			}
			n.ForgetLog()
			if again := n.configure(t, nil).Delegate; again.LoopbackDSR != c.want || n.changes() != 0 {
				t.Errorf("a second run: loopbackDSR %t, want %t and no change of HNS", again.LoopbackDSR, c.want)
			}
			if n.log.Count("cause="+causeNAT) != 2*c.warned {
				t.Errorf("logged\n%s", &n.log)
			}
		})
	}
}

// The trial has an address of the network without pods, so that no pod loses it; without that network there is none.
func TestTrialHasNoPodsAddress(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 1 })
	n.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Code: hns.InvalidParameter})
	s := n.spec().Without(conflist.Options{LoopbackDSR: true})
	s.EncapOverhead = 90
	from, both := n.sources(), conflist.Options{LoopbackDSR: true, EncapOverhead: true}
	if _, unknown, err := from.tryOptions(t.Context(), s, conflist.Options{EncapOverhead: true}); err == nil || !unknown.EncapOverhead {
		t.Errorf("its endpoint stays: unknown %+v, %v", unknown, err)
	}
	left, err := n.client.EndpointsNamed(t.Context(), trialEndpoint)
	if err != nil || len(left) != 1 || len(left[0].IPs) != 1 || left[0].IPs[0] != netip.MustParsePrefix("192.168.255.2/30") {
		t.Errorf("endpoints %+v, %v", left, err)
	}
	n.Heal()
	if s.LoopbackDSR = true; n.Admin().DeleteNetwork(dataplane.SwitchNetwork) != nil {
		t.Fatal("the network cannot be deleted")
	}
	refused, unknown, err := from.tryOptions(t.Context(), s, both)
	if refused != (conflist.Options{}) || unknown != (conflist.Options{LoopbackDSR: true}) || err == nil {
		t.Errorf("on the network of pods: refused %+v, unknown %+v, %v", refused, unknown, err)
	}
}

// What one trial says about both options.
func TestBothOptions(t *testing.T) {
	both := conflist.Options{LoopbackDSR: true, EncapOverhead: true}
	for name, c := range map[string]struct {
		most     int
		overhead hns.Code
		want     conflist.Options // refused
	}{
		"none": {2, 0, conflist.Options{}}, "loopbackDSR": {1, 0, conflist.Options{LoopbackDSR: true}},
		"overhead": {2, hns.InvalidPolicyType, conflist.Options{EncapOverhead: true}}, "both": {1, hns.InvalidPolicy, both},
		"an old HNS": {1, hns.InvalidParameter, both},
	} {
		n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
		n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT, k.OverheadRefused = c.most, c.overhead })
		s := n.spec()
		s.EncapOverhead = 90
		from := n.sources()
		if refused, unknown, err := from.tryOptions(t.Context(), s, both); refused != c.want || unknown != (conflist.Options{}) || (err != nil) != (c.want != conflist.Options{}) {
			t.Errorf("%s: refused %+v, want %+v; unknown %+v, %v", name, refused, c.want, unknown, err)
		}
	}
}

// What the file says counts where HNS does not answer; --force asks HNS again; a file that somebody edited is no reason to ask.
func TestWhenToTry(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	loopback := func(what string, s conflist.Spec, force bool, want bool, result string, tried bool) {
		t.Helper()
		n.ForgetLog()
		text, got := write(t, n.sources(), s, n.file, force)
		has := strings.Contains(string(text), `"loopbackDSR": true`)
		if has != want || got != result || (n.changes() > 0) != tried {
			t.Errorf("%s: %s, loopbackDSR %t, want %s, %t; a trial is expected: %t; log\n%s", what, got, has, result, want, tried, &n.log)
		}
	}
	s, more := n.spec(), n.spec()
	more.NATExceptions = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	most := func(count int) { n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = count }) }
	most(1)
	loopback("refused", s, false, false, "written", true)
	n.Turn(func(k *hnstest.Knobs) { k.Down = true })
	loopback("HNS does not answer", more, false, false, "updated", false)
	n.Turn(func(k *hnstest.Knobs) { k.Down = false })
	loopback("as it was refused", more, false, false, "unchanged", false)
	most(2)
	loopback("Windows was updated", more, false, false, "unchanged", false)
	loopback("forced", more, true, true, "updated", true)
	loopback("accepted", more, false, true, "unchanged", false)
	off := more
	off.LoopbackDSR = false
	loopback("turned off", off, false, false, "updated", false)
	loopback("turned on", more, false, true, "updated", true)
	text, err := os.ReadFile(n.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.file, []byte(strings.Replace(string(text), "172.16.0.0/12", "172.20.0.0/16", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	loopback("edited", more, false, true, "differs", false)
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
