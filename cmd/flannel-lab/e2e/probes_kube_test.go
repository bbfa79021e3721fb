package e2e

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// An Event of a Node says that this node does not reach another one, and a later one that
// it does again.
func TestProbesEvents(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 2}, `{"Type":"vxlan"}`)
	first, second := l.Nodes[0], l.Nodes[1]
	becomes(t, l, first, second, status.Reachable)
	if n := eventsOf(t, l, first, "FlannelPeersUnreachable"); n != 0 {
		t.Errorf("%d Events without an outage", n)
	}
	heal := cutOff(t, second)
	written(t, l, first, "FlannelPeersUnreachable")
	becomes(t, l, first, second, status.Unreachable)
	heal()
	written(t, l, first, "FlannelPeersReachable")
	becomes(t, l, first, second, status.Reachable)
}

// written waits for an Event of a node, which must be the only one with its reason.
func written(t *testing.T, l *lab.Lab, n *lab.Node, reason string) {
	t.Helper()
	within(t, reason, func() error {
		if count := eventsOf(t, l, n, reason); count != 1 {
			return fmt.Errorf("%s has %d such Events", n.Name, count)
		}
		return nil
	})
}

// eventsOf returns how many Events of a node have a reason.
func eventsOf(t *testing.T, l *lab.Lab, n *lab.Node, reason string) int {
	t.Helper()
	list, err := l.Kube.Client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + n.Name + ",reason=" + reason,
	})
	must(t, err)
	return len(list.Items)
}
