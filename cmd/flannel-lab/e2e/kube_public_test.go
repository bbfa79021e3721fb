package e2e

import (
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
		_, err := l.Kube.Client.CoreV1().Nodes().Patch(t.Context(), n.Name, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"flannel.alpha.coreos.com/node-public-ip":`+value+`}}}`), metav1.PatchOptions{})
		must(t, err)
	}
	uses := func(what, link, address string) {
		t.Helper()
		within(t, what, func() error { return says(t, n, link, "ip", "-d", "link", "show", "flannel.1") })
		within(t, what+": "+address+" is published", func() error {
			node, err := l.Kube.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
			if err == nil && node.Annotations["flannel.alpha.coreos.com/public-ip"] != address {
				return fmt.Errorf("the annotations are %v", node.Annotations)
			}
			return err
		})
	}
	annotate(`"192.168.100.111"`)
	must(t, n.StartWith(append(n.Args()[:3:3], "-public-ip=192.168.100.11", n.Args()[len(n.Args())-1])...))
	uses("from the start", "local 192.168.100.111 dev eth1", "192.168.100.111")
	within(t, "synced", func() error { return ready(t, n) })
	annotate("null")
	uses("without it, the flag counts", "local 192.168.100.11 dev eth0", "192.168.100.11")
	annotate(`"192.168.100.111"`)
	uses("and again", "local 192.168.100.111 dev eth1", "192.168.100.111")
}
