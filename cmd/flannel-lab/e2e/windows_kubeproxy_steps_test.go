//go:build kubeproxy

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/windows/hns"
)

// proxied is a Windows node with a kube-proxy.
type proxied struct {
	l       *lab.Lab
	w       *lab.Node
	proxy   *lab.KubeProxy
	flags   []string
	vip     netip.Addr
	network string

	far, near *lab.Pod   // on a Linux node, and on this node
	first     netip.Addr // of the Service for both
}

func (p *proxied) toFar() backend  { return backend{p.far.IP4, p.l.Nodes[0].IP4} }
func (p *proxied) toNear() backend { return backend{p.near.IP4, p.w.IP4} }

// newProxied gets the flags of kube-proxy from flanneld.exe, as the scripts do.
func newProxied(t *testing.T, l *lab.Lab, w *lab.Node) *proxied {
	t.Helper()
	version, err := w.KubeProxyVersion(t.Context())
	must(t, err)
	t.Log(version)
	bin, err := lab.BinDir()
	must(t, err)
	out, err := w.RunProgram(t.Context(), bin+"/../dist/out/flanneld-windows-amd64.exe", "source-vip", "--json",
		"--kube-proxy-version="+version)
	must(t, err)
	var answer struct {
		SourceVIP      netip.Addr
		Network        string
		KubeProxyFlags []string
	}
	must(t, json.Unmarshal([]byte(out.Stdout), &answer))
	if !answer.SourceVIP.IsValid() || len(answer.KubeProxyFlags) < 4 {
		t.Fatalf("source-vip printed %+v", out)
	}
	return &proxied{l: l, w: w, flags: answer.KubeProxyFlags, vip: answer.SourceVIP, network: answer.Network}
}

func (p *proxied) start(t *testing.T) {
	t.Helper()
	var err error
	p.proxy, err = p.w.StartKubeProxy(t.Context(), p.flags...)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.proxy.Log())
		}
	})
}

// service creates a Service with endpoints, which are given by node, and
// returns its address.
func (p *proxied) service(t *testing.T, name string, nodes map[string][]netip.Addr) netip.Addr {
	t.Helper()
	s, err := p.l.Kube.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	must(t, err)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("web"), Port: new(int32(8080)),
			Protocol: new(corev1.ProtocolTCP)}},
	}
	for node, addresses := range nodes {
		for _, a := range addresses {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a.String()}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
	}
	_, err = p.l.Kube.Client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{})
	must(t, err)
	at, err := netip.ParseAddr(s.Spec.ClusterIP)
	must(t, err)
	return at
}

// backend is a pod behind a Service, and the node that packets for it are sent
// to.
type backend struct{ Pod, Node netip.Addr }

// balancer is HostComputeLoadBalancer in the HCN schema.
type balancer struct {
	ID                   string
	HostComputeEndpoints []string
	SourceVIP            string
	FrontendVIPs         []string
	PortMappings         []struct{ Protocol, InternalPort, ExternalPort int }
	Flags                int
}

const directReturn = 1 // bit in balancer.Flags

// state holds all load balancers and endpoints, by ID in lower case.
type state struct {
	balancers map[string]balancer
	endpoints map[string]hns.Endpoint
}

func (p *proxied) state() (s state, err error) {
	r, err := p.w.Windows.Report()
	if err != nil {
		return s, err
	}
	s = state{map[string]balancer{}, map[string]hns.Endpoint{}}
	for _, doc := range r.Balancers {
		var b balancer
		if err := json.Unmarshal(doc, &b); err != nil {
			return s, err
		}
		s.balancers[strings.ToLower(b.ID)] = b
	}
	for _, doc := range r.Endpoints {
		e, err := hns.DecodeEndpoint(doc)
		if err != nil {
			return s, err
		}
		s.endpoints[strings.ToLower(e.ID)] = e
	}
	return s, nil
}

func (p *proxied) currentState(t *testing.T) state {
	t.Helper()
	s, err := p.state()
	must(t, err)
	return s
}

// balances waits until the Service has a load balancer with exactly these
// backends.
func (p *proxied) balances(t *testing.T, at netip.Addr, want ...backend) {
	t.Helper()
	withinOf(t, 2*long, fmt.Sprintf("%s leads to %v", at, want), func() error {
		if !p.proxy.Running() {
			return machine.Fatal(errors.New("kube-proxy exited"))
		}
		s, err := p.state()
		if err != nil {
			return err
		}
		for _, b := range s.balancers {
			if slices.Contains(b.FrontendVIPs, at.String()) {
				return p.leadsTo(s, b, want)
			}
		}
		return fmt.Errorf("no load balancer for %s", at)
	})
}

func (p *proxied) leadsTo(s state, b balancer, want []backend) error {
	var got []backend
	for _, id := range b.HostComputeEndpoints {
		e, ok := s.endpoints[strings.ToLower(id)]
		if !ok || len(e.IPs) != 1 || e.Remote != (e.Provider != p.w.IP4) {
			return fmt.Errorf("%+v has the endpoint %+v", b, e)
		}
		got = append(got, backend{e.IPs[0].Addr(), e.Provider})
	}
	order := func(x, y backend) int { return x.Pod.Compare(y.Pod) }
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, want) {
		return fmt.Errorf("it has the backends %v", got)
	}
	if b.SourceVIP != p.vip.String() || b.Flags != directReturn || len(b.PortMappings) != 1 ||
		b.PortMappings[0] != struct{ Protocol, InternalPort, ExternalPort int }{6, 8080, 80} {
		return fmt.Errorf("the load balancer is %+v; the source VIP is %s", b, p.vip)
	}
	return nil
}

// kept checks that all load balancers and endpoints still exist, with the same
// IDs.
func (p *proxied) kept(t *testing.T, before state) {
	t.Helper()
	after := p.currentState(t)
	for id, b := range before.balancers {
		if fmt.Sprint(after.balancers[id]) != fmt.Sprint(b) {
			t.Errorf("the load balancer was %+v, is %+v", b, after.balancers[id])
		}
	}
	for id, e := range before.endpoints {
		if fmt.Sprint(after.endpoints[id]) != fmt.Sprint(e) {
			t.Errorf("the endpoint was %+v, is %+v", e, after.endpoints[id])
		}
	}
}

// hasNone returns an error if one of these load balancers exists.
func (p *proxied) hasNone(all map[string]balancer) error {
	s, err := p.state()
	if err != nil {
		return err
	}
	for id, b := range all {
		if _, ok := s.balancers[id]; ok {
			return fmt.Errorf("%+v still exists", b)
		}
	}
	return nil
}

// withdraw deletes a Service, and waits until kube-proxy has deleted its load
// balancer and the endpoints at gone, which no other Service uses.
func (p *proxied) withdraw(t *testing.T, name string, at netip.Addr, gone ...netip.Addr) {
	t.Helper()
	must(t, p.l.Kube.Client.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	must(t, p.l.Kube.Client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	withinOf(t, 2*long, name+" is gone", func() error {
		s, err := p.state()
		if err != nil {
			return err
		}
		for _, b := range s.balancers {
			if slices.Contains(b.FrontendVIPs, at.String()) {
				return fmt.Errorf("%+v still exists", b)
			}
		}
		for _, e := range s.endpoints {
			if len(e.IPs) > 0 && slices.Contains(append(gone, at), e.IPs[0].Addr()) {
				return fmt.Errorf("%+v still exists", e)
			}
		}
		return nil
	})
}

// source returns the only endpoint with the source VIP, which flanneld has
// created and kube-proxy uses.
func (p *proxied) source(t *testing.T) hns.Endpoint {
	t.Helper()
	var all []hns.Endpoint
	for _, e := range p.currentState(t).endpoints {
		if slices.ContainsFunc(e.IPs, func(a netip.Prefix) bool { return a.Addr() == p.vip }) {
			all = append(all, e)
		}
	}
	if len(all) != 1 || all[0].Remote || all[0].Name != "source-vip" {
		t.Fatalf("endpoints with the source VIP: %+v", all)
	}
	return all[0]
}

// hasPolicy returns an error unless HNS has a policy for a subnet or, with want
// false, has none.
func (p *proxied) hasPolicy(subnet netip.Prefix, want bool) error {
	n, err := networkOf(p.w)
	if err != nil {
		return err
	}
	has := slices.ContainsFunc(n.Policies, func(policy hns.Policy) bool {
		r, err := policy.RemoteSubnet()
		return policy.IsRemoteSubnet() && err == nil && r.Prefix == subnet
	})
	if has != want {
		return fmt.Errorf("there is a policy for %s: %t", subnet, has)
	}
	return nil
}
