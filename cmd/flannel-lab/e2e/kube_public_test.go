package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/cmd/flannel-lab/lab"
)

// An annotation of the operator selects the interface, before the first start
// and later. It overrides the flag.
func TestNodePublicIPSelectsTheInterface(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Kube: true, Nodes: 2}, `{"Type":"vxlan"}`)
	n := l.Nodes[0]
	in(t, n.Namespaces, `ip link add eth1 link eth0 type macvlan mode bridge; ip link set eth1 up
		ip address add 192.168.100.111/24 dev eth1 noprefixroute; ip route delete default`)
	annotate := func(value string) {
		t.Helper()
		annotateNode(t, n, l, "node-public-ip", value)
	}
	uses := func(what, link, address string) {
		t.Helper()
		within(t, what, func() error { return says(t, n, link, "ip", "-d", "link", "show", "flannel.1") })
		publishes(t, n, l, address)
	}
	annotate(`"192.168.100.111"`)
	must(t, n.StartWith(append(n.Args()[:3:3], "-public-ip=192.168.100.11", n.Args()[len(n.Args())-1])...))
	uses("from the start", "local 192.168.100.111 dev eth1", "192.168.100.111")
	becomesReady(t, n)
	annotate("null")
	uses("without it, the flag counts", "local 192.168.100.11 dev eth0", "192.168.100.11")
	annotate(`"192.168.100.111"`)
	uses("and again", "local 192.168.100.111 dev eth1", "192.168.100.111")
}

// An address that an operator overwrites while flanneld does not run is published after the start, also if the backend
// publishes nothing else that changes with it.
func TestPublicIPOverwrittenBetweenTwoRuns(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 1}, `{"Type":"host-gw"}`)
	n := l.Nodes[0]
	publishes(t, n, l, n.IP4.String())
	_, err := n.Stop(t.Context())
	must(t, err)
	annotateNode(t, n, l, "public-ip-overwrite", `"192.168.100.98"`)
	must(t, n.Start())
	publishes(t, n, l, "192.168.100.98")
}

// publishes waits until a node publishes an address.
func publishes(t *testing.T, n *lab.Node, l *lab.Lab, address string) {
	t.Helper()
	within(t, address+" is published", func() error {
		node, err := l.Kube.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
		if err == nil && node.Annotations["flannel.alpha.coreos.com/public-ip"] != address {
			return fmt.Errorf("the annotations are %v", node.Annotations)
		}
		return err
	})
}

// annotateNode sets one of flannel's annotations of a Node to a JSON value.
func annotateNode(t *testing.T, n *lab.Node, l *lab.Lab, name, value string) {
	t.Helper()
	_, err := l.Kube.Client.CoreV1().Nodes().Patch(t.Context(), n.Name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"flannel.alpha.coreos.com/`+name+`":`+value+`}}}`), metav1.PatchOptions{})
	must(t, err)
}

// The others send to the address in an annotation of the operator, and their guards also
// accept the address from which the node sends. When the annotation comes and goes,
// nothing is lost.
func TestGuardOverwrittenPublicIP(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 2}, `{"Type":"vxlan","Guard":"enforce","GuardTrial":0}`)
	n, other := l.Nodes[0], l.Nodes[1]
	const told = "192.168.100.98"
	in(t, n.Namespaces, "ip address add "+told+"/32 dev eth0")
	s := &guardTest{l: l}
	s.a, s.b = pair(t, l)
	must(t, reach(t.Context(), s.a, s.b))
	for _, n := range l.Nodes {
		within(t, n.Name+" enforces", func() error { return s.enforces(t, n) })
	}
	check := noneForged(t, l)
	f := flood(t, s.a, s.b)
	accepts := func(want string) {
		t.Helper()
		eventually(t, "the guard accepts "+want, want, func(ctx context.Context) (string, error) {
			return try(ctx, other.Namespaces, "nft list set inet flannel-guard peers4 | grep -o '192[0-9.]*' | sort | xargs")
		})
	}
	for range 2 {
		accepts(n.IP4.String())
		annotateNode(t, n, l, "public-ip-overwrite", `"`+told+`"`)
		accepts(n.IP4.String() + " " + told)
		within(t, "the other node sends there", func() error { return says(t, other, "dst "+told, "bridge", "fdb", "show", "dev", "flannel.1") })
		s.legitimate(t)
		annotateNode(t, n, l, "public-ip-overwrite", "null")
	}
	accepts(n.IP4.String())
	s.legitimate(t)
	f.checkNoLoss(t, "another public IP")
	check()
}
