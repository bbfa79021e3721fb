package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// apartRogue returns a lease that nodes accept until it claims what belongs to
// another.
func apartRogue(backend string) (key string, v *value) {
	v = &value{PublicIP: "192.168.100.66", BackendType: backend}
	if backend == "vxlan" {
		v.BackendData = &vtep{1, "02:bb:00:00:00:66"}
	}
	return "10.5.200.0-24", v
}

// A compromised node with an older lease publishes the MAC of a younger node.
// The others reject it, and nobody loses a packet.
func TestOlderLeaseWithAYoungerNodesMAC(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	key, rogue := apartRogue("vxlan")
	six := "fd00:100::66"
	key += "&fd05:0:0:c8::-64"
	rogue.PublicIPv6, rogue.BackendV6Data = &six, &vtep{1, "02:bb:00:00:00:67"}
	putLease(t, l, key, rogue)
	must(t, l.StartAll(t.Context()))
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	must(t, reach(t.Context(), b, a))
	for _, n := range l.Nodes {
		hasPeers(t, n, 2)
	}

	f := flood(t, a, b)
	name, _ := leaseOf(t, l, l.Nodes[1])
	victim := leases(t, l)[name]
	rogue.BackendData, rogue.BackendV6Data = victim.BackendData, victim.BackendV6Data
	putLease(t, l, key, rogue)
	for _, n := range l.Nodes {
		within(t, n.Name+" rejects the rogue", func() error { return has(t, n, "flanneld_invalid_peers 1") })
		hasPeers(t, n, 1)
		becomesReady(t, n)
		logged(t, n, 0, "cause=peer-rejected", "peer="+leasePrefix+key)
	}
	// A node that starts now must decide the same.
	must(t, l.Nodes[0].Kill())
	must(t, l.Nodes[0].Start())
	must(t, l.Nodes[0].Ready(t.Context()))
	within(t, "a node that starts rejects the rogue",
		func() error { return has(t, l.Nodes[0], "flanneld_invalid_peers 1") })
	f.checkNoLoss(t, "an older lease has a node's MAC address")
}

// The public IP of a peer is a second address of this node. The kernel refuses
// such a route, and only that peer is affected. It is accepted as soon as the
// address is removed.
func TestPeerAtAnAddressOfThisNode(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`"}`+apart)
			n := l.Nodes[0]
			a, b := pair(t, l)
			must(t, reach(t.Context(), a, b))
			f := flood(t, a, b)
			in(t, n.Namespaces, "ip addr add 192.168.100.66/32 dev eth0")
			key, v := apartRogue(backend)
			putLease(t, l, key, v)
			within(t, "the peer is rejected", func() error { return has(t, n, "flanneld_invalid_peers 1") })
			becomesReady(t, n)
			must(t, silent(t, n, "10.5.200.0/24", "ip", "route")) // the pass that has rejected the peer is over
			hasPeers(t, l.Nodes[1], 2)

			in(t, n.Namespaces, "ip addr del 192.168.100.66/32 dev eth0")
			hasPeers(t, n, 2)
			within(t, "with a route", func() error { return says(t, n, "10.5.200.0/24", "ip", "route") })
			// Also with the address on another interface, and if the lease
			// existed first.
			in(t, n.Namespaces, "ip link add virtual type bridge; ip link set virtual up; ip addr add 192.168.100.66/32 dev virtual")
			within(t, "it is rejected again", func() error { return has(t, n, "flanneld_invalid_peers 1") })
			becomesReady(t, n)
			within(t, "without its route", func() error { return silent(t, n, "10.5.200.0/24", "ip", "route") })
			f.checkNoLoss(t, "a peer was at an address of this node")
		})
	}
}

// Two nodes have the same MAC, as clones or because a program set it. The
// others reject the younger one, which chooses another MAC by itself.
func TestOwnMACIsADuplicate(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`+apart)
	older, younger := l.Nodes[0], l.Nodes[1]
	for _, n := range l.Nodes { // one after another, so that the first is older
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
	}
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	for _, n := range l.Nodes {
		stopped(t, n)
	}
	const common = "02:aa:00:00:00:01"
	for _, n := range l.Nodes {
		in(t, n.Namespaces, "for d in flannel.1 flannel-v6.1; do ip link set $d address "+common+"; done")
	}
	must(t, l.StartAll(t.Context()))
	within(t, "the younger node has other addresses", func() error {
		return silent(t, younger, common, "sh", "-c", "cat /sys/class/net/flannel*/address")
	})
	must(t, reach(t.Context(), a, b))
	must(t, reach(t.Context(), b, a))
	for _, n := range l.Nodes {
		within(t, n.Name+" rejects nobody", func() error { return has(t, n, "flanneld_invalid_peers 0") })
		becomesReady(t, n)
	}
	macs := func(n *lab.Node) string { return in(t, n.Namespaces, "cat /sys/class/net/flannel*/address") }
	if got := macs(older); strings.Count(got, common) != 2 {
		t.Errorf("the older node has the addresses %s", got)
	}
	within(t, "the younger node logs one change of each device", func() error {
		if got := younger.Records(0).With("cause=duplicate-mac"); len(got) != 2 {
			return fmt.Errorf("logged\n%s", got)
		}
		return nil
	})
	for _, n := range l.Nodes {
		waitSynced(t, l, n)
	}

	// A restart keeps the address, and no packet is lost.
	f := flood(t, a, b)
	before := macs(younger)
	must(t, younger.Kill())
	must(t, younger.Start())
	must(t, younger.Ready(t.Context()))
	if got := macs(younger); got != before {
		t.Errorf("after a restart the addresses are %s, were %s", got, before)
	}
	f.checkNoLoss(t, "the younger node restarts")
}

// In Kubernetes such peers must not make a node unschedulable.
func TestKubernetesPeerAtAnAddressOfThisNode(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 2}, `{"Type":"host-gw"}`)
	n := l.Nodes[0]
	in(t, n.Namespaces, "ip addr add 192.168.100.66/32 dev eth0; ip route add unreachable 192.168.100.67 scope link")
	routedPeer(t, l, "local", "192.168.100.66")
	routedPeer(t, l, "unreachable", "192.168.100.67")
	within(t, "one peer is rejected", func() error { return has(t, n, "flanneld_invalid_peers 1") })
	within(t, "one peer is refused", func() error { return has(t, n, "flanneld_refused_peers 1") })
	becomesReady(t, n)
	available(t, l, n)
}

// routedPeer registers a Node that exists only as an object, with the
// annotations of host-gw.
func routedPeer(t *testing.T, l *lab.Lab, name, publicIP string) {
	t.Helper()
	must(t, l.Kube.AddNode(t.Context(), name))
	addPeerCIDRs(t, l, name)
	const prefix = "flannel.alpha.coreos.com/"
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "host-gw", prefix + "backend-data": "null", prefix + "public-ip": publicIP}}})
	must(t, err)
	_, err = l.Kube.Client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	must(t, err)
}

// available checks that the condition NetworkUnavailable of a Node is False.
func available(t *testing.T, l *lab.Lab, n *lab.Node) {
	t.Helper()
	within(t, "the network of "+n.Name+" is available", func() error {
		node, err := l.Kube.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
		must(t, err)
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", node.Status.Conditions)
	})
}

// The kernel refuses the route to one peer. The peer is reported with the
// reason, the node stays ready, and retries.
func TestKernelRefusesAPeer(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"host-gw"}`+apart)
	n := l.Nodes[0]
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	f := flood(t, a, b)
	in(t, n.Namespaces, "ip route add unreachable 192.168.100.66 scope link")
	key, v := apartRogue("host-gw")
	putLease(t, l, key, v)
	within(t, "the peer is counted as refused", func() error { return has(t, n, "flanneld_refused_peers 1") })
	becomesReady(t, n)
	report, err := reportOf(t, n)
	must(t, err)
	for _, p := range report.Peers {
		if ours := strings.HasSuffix(p.Name, key); ours != (p.State == status.Behind) || ours != (p.Reason != "") {
			t.Errorf("the peer %s is %s: %s", p.Name, p.State, p.Reason)
		}
	}
	// Other peers are still added and removed.
	v.PublicIP = "192.168.100.67"
	putLease(t, l, "10.5.201.0-24", v)
	within(t, "another peer has its route", func() error { return says(t, n, "10.5.201.0/24", "ip", "route") })
	putLease(t, l, "10.5.201.0-24", nil)
	within(t, "its route is deleted", func() error { return silent(t, n, "10.5.201.0/24", "ip", "route") })
	becomesReady(t, n)
	once(t, n, 0, "peer="+leasePrefix+key) // its reason stays the same, and no probes tell of a peer that is refused
	in(t, n.Namespaces, "ip route del unreachable 192.168.100.66 scope link")
	within(t, "the peer has its route", func() error { return says(t, n, "10.5.200.0/24", "ip", "route") })
	within(t, "no peer is refused", func() error { return has(t, n, "flanneld_refused_peers 0") })
	becomesReady(t, n)
	f.checkNoLoss(t, "the kernel refused a peer")

	// If most peers are refused, the node itself is not ready.
	in(t, n.Namespaces, "ip route add unreachable 192.168.100.68 scope link")
	v.PublicIP = "192.168.100.68"
	for i := range 3 {
		putLease(t, l, fmt.Sprintf("10.5.%d.0-24", 202+i), v)
	}
	within(t, "the node is not ready", func() error { return unready(t, n, "192.168.100.68") })
}
