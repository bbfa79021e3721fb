package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// caller is who connects: a pod, a host, or a pod in the network of its host.
type caller struct {
	name string
	machine.Namespaces
	source netip.Addr // its address; of hosts invalid if the kernel chooses it
	node   *lab.Node  // nil: it is on none
	pod    bool       // it has an address of the pod network
}

// servicesTest is a lab with three nodes, a pod and a kube-proxy on each of them, and
// guards that enforce.
type servicesTest struct {
	guardTest
	masquerade bool
	pods       []*lab.Pod
	all        []caller
}

// The ports of pods and hosts, and those of the Services on all nodes.
const (
	podPort, hostPort                              = 8080, 8081
	clusterNodePort, localNodePort, toHostNodePort = 30001, 30002, 30003
)

// What a guard that enforces must not drop in a cluster with kube-proxy: from pods,
// hosts and outside, to pods, hosts and Services. Two nodes of the lab with
// DirectRouting are on one network, and the third one is behind a router.
func TestGuardServices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, backend string
		networks      int
		masquerade    bool // if not, packets of hosts in the tunnel have the addresses of nodes
	}{
		{"vxlan", `"vxlan"`, 1, true},
		{"vxlan without masquerading", `"vxlan"`, 1, false},
		{"DirectRouting", `"vxlan","DirectRouting":true`, 2, true},
		{"host-gw", `"host-gw"`, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newServicesTest(t, `{"Type":`+c.backend+`,"Guard":"enforce","GuardTrial":0}`, c.networks, c.masquerade)
			acquainted(t, s.l)
			before := s.found(t)
			s.direct(t)
			s.services(t)
			if after := s.found(t); after != before {
				t.Errorf("the guards have dropped %s, before %s", after, before)
			}
		})
	}
}

func newServicesTest(t *testing.T, config string, networks int, masquerade bool) *servicesTest {
	t.Helper()
	l := prepare(t, lab.Options{Kube: true, Nodes: 3, Subnets: networks}, config)
	// The third knows the pod network, and masquerades what comes from elsewhere.
	kubeProxies(t, l, "--proxy-mode=iptables", "--proxy-mode=nftables --nodeport-addresses=192.168.0.0/16", "--proxy-mode=iptables --cluster-cidr="+lab.Network4)
	must(t, l.StartAll(t.Context(), fmt.Sprintf("--ip-masq=%t", masquerade)))
	s := &servicesTest{guardTest: guardTest{l: l}, masquerade: masquerade}
	for _, n := range l.Nodes {
		p := pod(t, n, "pod-of-"+n.Name)
		s.pods = append(s.pods, p)
		serve(t, p.Namespaces, netip.AddrPortFrom(p.IP4, podPort), p.Name)
		serve(t, n.Namespaces, netip.AddrPortFrom(n.IP4, hostPort), n.Name)
		s.all = append(s.all, caller{p.Name, p.Namespaces, p.IP4, n, true},
			caller{n.Name, n.Namespaces, netip.Addr{}, n, false}, caller{n.Name + " with its address", n.Namespaces, n.IP4, n, false})
		within(t, n.Name+" enforces", func() error { return s.enforces(t, n) })
	}
	router := netip.MustParseAddr("192.168.100.1")
	s.all = append(s.all, caller{"a host beside the nodes", l.Infra.Namespaces, router, nil, false},
		caller{"a host behind the router", l.Infra.Namespaces, lab.Outside4, nil, false})
	return s
}

// found returns what the guards have found.
func (s *servicesTest) found(t *testing.T) string {
	t.Helper()
	var all []string
	for _, n := range s.l.Nodes {
		all = append(all, fmt.Sprint(n.Name, " ", s.guard(t, n).Packets))
	}
	return strings.Join(all, ", ")
}

// direct connects pods and hosts with each other.
func (s *servicesTest) direct(t *testing.T) {
	t.Helper()
	for _, c := range s.all {
		for i, n := range s.l.Nodes {
			s.reaches(t, c, netip.AddrPortFrom(n.IP4, hostPort), netip.Addr{}, n.Name)
			p := s.pods[i]
			switch {
			case c.node == nil: // it has no route to pods
			case c.pod && s.masquerade: // otherwise the plugin bridge does, also between pods
				s.reaches(t, c, netip.AddrPortFrom(p.IP4, podPort), c.source, p.Name)
			default:
				s.reaches(t, c, netip.AddrPortFrom(p.IP4, podPort), netip.Addr{}, p.Name)
			}
		}
	}
}

// services connects all to Services: by their address, and by node ports with each
// traffic policy. Those whose policy is local must see the address of a client outside
// of the node.
func (s *servicesTest) services(t *testing.T) {
	t.Helper()
	l, second, third := s.l, s.pods[1], s.pods[2]
	behind := []endpoint{{second.IP4, second.Node.Name}, {third.IP4, third.Node.Name}}
	spec := func(at string, port, nodePort int32, policy corev1.ServiceExternalTrafficPolicy) corev1.ServiceSpec {
		return corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: at, ExternalTrafficPolicy: policy,
			Ports: []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromInt32(port), NodePort: nodePort}}}
	}
	everywhere := expose(t, l, "everywhere", spec("10.96.7.1", podPort, clusterNodePort, corev1.ServiceExternalTrafficPolicyCluster), behind...)
	expose(t, l, "local", spec("10.96.7.2", podPort, localNodePort, corev1.ServiceExternalTrafficPolicyLocal), behind...)
	toHost := expose(t, l, "to-host", spec("10.96.7.3", hostPort, toHostNodePort, corev1.ServiceExternalTrafficPolicyCluster),
		endpoint{l.Nodes[1].IP4, l.Nodes[1].Name})
	any := netip.Addr{}
	for _, c := range s.all {
		if c.node != nil {
			s.reaches(t, c, everywhere, any, second.Name, third.Name)
			s.reaches(t, c, toHost, any, l.Nodes[1].Name)
		}
		for i, n := range l.Nodes {
			s.reaches(t, c, netip.AddrPortFrom(n.IP4, clusterNodePort), any, second.Name, third.Name)
			s.reaches(t, c, netip.AddrPortFrom(n.IP4, toHostNodePort), any, l.Nodes[1].Name)
			if i == 0 || c.node == n { // it has no such pod; or kube-proxy is free to take another one
				continue
			}
			seen := c.source
			if c.node != nil { // a host, or a pod that is masqueraded
				seen = c.node.IP4
			}
			s.reaches(t, c, netip.AddrPortFrom(n.IP4, localNodePort), seen, s.pods[i].Name)
		}
	}
}

// reaches connects until each of some servers has answered. If seen is valid, they must
// see the caller as this address.
func (s *servicesTest) reaches(t *testing.T, c caller, to netip.AddrPort, seen netip.Addr, servers ...string) {
	t.Helper()
	answered := map[string]bool{}
	_, err := machine.Until(t.Context(), timeout, func(ctx context.Context) error {
		server, as, err := c.ask(ctx, to)
		switch {
		case err != nil:
			return err
		case !slices.Contains(servers, server):
			return machine.Fatal(fmt.Errorf("%s answers", server))
		case seen.IsValid() && as != seen.String():
			return machine.Fatal(fmt.Errorf("%s sees it as %s, not %s", server, as, seen))
		}
		if answered[server] = true; len(answered) < len(servers) {
			return fmt.Errorf("got answers of %v only", slices.Collect(maps.Keys(answered)))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s to %s: %v; the guards have dropped %s", c.name, to, err, s.found(t))
	}
}

// ask connects to a server, and returns its name and as what it sees the caller.
func (c caller) ask(ctx context.Context, to netip.AddrPort) (server, seen string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // the caller tries again
	defer cancel()
	d := net.Dialer{}
	if c.source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.source, 0))
	}
	var conn net.Conn
	if err := c.Do(func() error { conn, err = d.DialContext(ctx, "tcp", to.String()); return err }); err != nil {
		return "", "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	buf := make([]byte, 100)
	n := 0
	if err = conn.SetReadDeadline(deadline); err == nil {
		n, err = conn.Read(buf)
	}
	server, seen, ok := strings.Cut(string(buf[:n]), " ")
	if !ok {
		return "", "", errors.Join(fmt.Errorf("read %q", buf[:n]), err)
	}
	return server, seen, nil
}
