package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// The real kube-proxy together with flanneld, with iptables on one node and
// nftables on the other. Its rules stay before ours, whichever of the two
// starts first. Services lead to pods, and connections to one without pods are
// refused at once.
func TestServices(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := prepare(t, lab.Options{Kube: true, Nodes: 2}, `{"Type":"vxlan"}`)
	var proxies []*lab.KubeProxy
	startProxies := func() {
		t.Helper()
		proxies = kubeProxies(t, l, "--proxy-mode=iptables", "--proxy-mode=nftables")
	}
	startProxies()
	within(t, "kube-proxy's rules", func() error { return kubeProxyFirst(t, l.Nodes[0], false) })
	must(t, l.StartAll(ctx))
	a, b := pair(t, l)
	web := service(t, l, "web", "10.96.7.1", a, b)
	empty := service(t, l, "empty", "10.96.7.2")
	answers(t, web, a, b)
	t.Cleanup(noneForged(t, l))
	refused(t, empty, a, b)
	within(t, "kube-proxy's rules before ours", func() error { return kubeProxyFirst(t, l.Nodes[0], true) })
	before := forwarding(t, l.Nodes[0])

	unchangedRules := func(when string) {
		t.Helper()
		if after := forwarding(t, l.Nodes[0]); after != before {
			t.Errorf("%s: the rules were\n%sand are\n%s", when, before, after)
		}
	}
	for _, n := range l.Nodes {
		_, err := n.Stop(ctx)
		must(t, err)
		must(t, n.Start())
		must(t, n.Ready(ctx))
	}
	answers(t, web, a, b)
	refused(t, empty, a, b)
	unchangedRules("flanneld restarted")

	for _, p := range proxies {
		must(t, p.Kill())
	}
	// kube-proxy restores missing rules at the first place.
	shell(t, l.Nodes[0].Namespaces, "for t in filter nat; do iptables-save -t $t | grep -e '-A FORWARD.*KUBE' -e '-A POSTROUTING.*KUBE' | sed 's/^-A/-D/' | xargs -L1 iptables -t $t; done")
	startProxies()
	within(t, "kube-proxy's rules before ours", func() error { return kubeProxyFirst(t, l.Nodes[0], true) })
	answers(t, web, a, b)
	refused(t, empty, a, b)
	shell(t, l.Nodes[0].Namespaces, "iptables -t nat -D POSTROUTING %s; iptables -D FORWARD %s",
		masqJump[len("-A POSTROUTING "):], forwardJump[len("-A FORWARD "):])
	within(t, "our jumps, behind kube-proxy's", func() error { return kubeProxyFirst(t, l.Nodes[0], true) })
	answers(t, web, a, b)
	refused(t, empty, a, b)
}

// kubeProxies starts kube-proxy on each node, with a flag for each. They end with
// the test.
func kubeProxies(t *testing.T, l *lab.Lab, flags ...string) (proxies []*lab.KubeProxy) {
	t.Helper()
	for i, n := range l.Nodes {
		p, err := n.StartKubeProxy(t.Context(), strings.Fields(flags[i])...)
		must(t, err)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of kube-proxy on %s:\n%s", n.Name, p.Log())
			}
			if p.Running() {
				must(t, p.Kill())
			}
		})
		proxies = append(proxies, p)
	}
	return proxies
}

// forwarding returns the contents of the two chains that kube-proxy and
// flanneld share.
func forwarding(t *testing.T, n *lab.Node) string {
	t.Helper()
	return shell(t, n.Namespaces, "iptables -S FORWARD; iptables -t nat -S POSTROUTING")
}

// kubeProxyFirst checks that kube-proxy's jumps exist, and that ours come after
// them, or do not exist.
func kubeProxyFirst(t *testing.T, n *lab.Node, ours bool) error {
	t.Helper()
	rules := strings.Split(forwarding(t, n), "\n")
	for chain, jump := range map[string]string{"FORWARD": forwardJump, "POSTROUTING": masqJump} {
		theirs := -1
		for i, r := range rules {
			if strings.HasPrefix(r, "-A "+chain+" ") && strings.Contains(r, "-j KUBE-") {
				theirs = i
			}
		}
		at := slices.Index(rules, jump)
		if theirs < 0 || ours != (at >= 0) || ours && at < theirs {
			return fmt.Errorf("kube-proxy's last rule of %s is at %d, ours at %d:\n%s", chain, theirs, at,
				strings.Join(rules, "\n"))
		}
	}
	return nil
}

// service creates a Service with an address that leads to pods, in which
// something listens.
func service(t *testing.T, l *lab.Lab, name, at string, pods ...*lab.Pod) netip.AddrPort {
	t.Helper()
	var endpoints []endpoint
	for _, p := range pods {
		serve(t, p.Namespaces, netip.AddrPortFrom(p.IP4, 8080), p.Name)
		endpoints = append(endpoints, endpoint{p.IP4, p.Node.Name})
	}
	return expose(t, l, name, corev1.ServiceSpec{ClusterIP: at,
		Ports: []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromInt32(8080)}}}, endpoints...)
}

// endpoint is an address behind a Service, and the node that has it.
type endpoint struct {
	ip   netip.Addr
	node string
}

// expose creates a Service with one port, and returns its address.
func expose(t *testing.T, l *lab.Lab, name string, spec corev1.ServiceSpec, endpoints ...endpoint) netip.AddrPort {
	t.Helper()
	_, err := l.Kube.Client.CoreV1().Services("default").Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
	port := spec.Ports[0]
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &port.Name, Port: new(port.TargetPort.IntVal),
			Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.ip.String()}, NodeName: &e.node,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	_, err = l.Kube.Client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{})
	must(t, err)
	return netip.AddrPortFrom(netip.MustParseAddr(spec.ClusterIP), uint16(port.Port))
}

// serve greets those who connect to a pod or host.
func serve(t *testing.T, ns machine.Namespaces, at netip.AddrPort, name string) {
	t.Helper()
	listener, err := ns.Listen("tcp", at.String())
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go greet(listener, name)
}

// greet sends a name and the address of the client on every connection.
func greet(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprintf(c, "%s %s", name, c.RemoteAddr().(*net.TCPAddr).IP)
		c.Close()
	}
}

// answers connects from each pod to a Service until all of its pods have
// answered, and checks that they see the address of a client on another node.
func answers(t *testing.T, at netip.AddrPort, pods ...*lab.Pod) {
	t.Helper()
	for _, from := range pods {
		answered := map[string]bool{}
		within(t, from.Name+" reaches all pods of the Service", func() error {
			c, err := from.Dial(t.Context(), "tcp", at.String())
			if err != nil {
				return err
			}
			defer c.Close()
			buf := make([]byte, 100)
			n, err := c.Read(buf)
			name, source, ok := strings.Cut(string(buf[:n]), " ")
			if !ok {
				return fmt.Errorf("read %q: %w", buf[:n], err)
			}
			if answered[name] = true; name != from.Name && source != from.IP4.String() {
				return machine.Fatal(fmt.Errorf("%s sees %s as %s", name, from.IP4, source))
			}
			if len(answered) < len(pods) {
				return fmt.Errorf("got answers of %v only", answered)
			}
			return nil
		})
	}
}

// refused checks that connections to a Service without pods are refused at
// once.
func refused(t *testing.T, at netip.AddrPort, pods ...*lab.Pod) {
	t.Helper()
	for _, from := range pods {
		within(t, from.Name+" is refused", func() error {
			c, err := from.Dial(t.Context(), "tcp", at.String())
			if err == nil {
				c.Close()
				return errors.New("connected to a Service without a pod")
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				return nil
			}
			return err
		})
	}
}
