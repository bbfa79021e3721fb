//go:build former

package e2e

import (
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/nettest"
)

// TestFormerRelease checks that nodes with the former release and nodes with this program form one network, and that each
// node can be upgraded and can go back without losing a packet.
func TestFormerRelease(t *testing.T) {
	former := nettest.Tool(t, "former/flanneld")
	for _, c := range []struct {
		name    string
		options lab.Options
		backend string
	}{
		{"vxlan", lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}` + apart},
		{"vxlan with nftables", lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"},"EnableNFTables":true` + apart},
		{"host-gw", lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"host-gw"}` + apart},
		{"wireguard", lab.Options{Nodes: 2}, `{"Type":"wireguard"}`},
		{"vxlan in Kubernetes", lab.Options{Kube: true, Nodes: 2}, `{"Type":"vxlan"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := prepare(t, c.options, c.backend)
			upgraded, later := l.Nodes[0], l.Nodes[1]
			begin := func(n *lab.Node, program string) {
				t.Helper()
				must(t, n.StartIn(program, n.Args()...))
				must(t, n.Ready(t.Context()))
			}
			swap := func(n *lab.Node, program string) {
				t.Helper()
				_, err := n.Stop(t.Context())
				must(t, err)
				begin(n, program)
			}
			begin(upgraded, former)
			begin(later, former)
			a, b := pair(t, l)
			for _, step := range []struct {
				node    *lab.Node
				program string
				what    string
			}{
				{upgraded, l.Flanneld(), "the first node upgraded"},
				{later, l.Flanneld(), "both upgraded"},
				{upgraded, former, "the first node back"},
				{later, former, "both back"},
			} {
				must(t, reach(t.Context(), a, b))
				must(t, reach(t.Context(), b, a))
				f := flood(t, a, b)
				swap(step.node, step.program)
				f.checkNoLoss(t, step.what)
			}
			// A node that joins, and one that leaves, are seen by the other program.
			swap(upgraded, l.Flanneld())
			must(t, later.Kill())
			begin(later, former)
			must(t, reach(t.Context(), b, a))
		})
	}
}
