package e2e

import (
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// A node whose subnet lies inside its underlay's network says so once, and works.
func TestSubnetInsideTheUnderlay(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
	for _, n := range l.Nodes { // a second network of the link, as wide as the pod network
		in(t, n.Namespaces, "ip route add 10.5.0.0/16 dev eth0 scope link src "+n.IP4.String())
	}
	must(t, l.StartAll(t.Context()))
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	if found := logged(t, l.Nodes[0], 0, "cause=config-warning"); len(found) != 1 || !strings.Contains(found.String(), "10.5.0.0/16") {
		t.Errorf("it says %s", found)
	}
}

// A configuration with another Network is stored, which running nodes refuse. A
// node that is killed meanwhile starts in that network, and is not ready, because
// no new pod could start beside those of its former subnet. When the former
// configuration is restored and the node starts again, it has its old subnet,
// and its pods, which ran all the time, reach the others again.
func TestNetworkThereAndBack(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
	n := l.Nodes[0]
	b, a := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	before, err := n.SubnetEnv()
	must(t, err)
	first, err := l.Leases(t.Context())
	must(t, err)

	mark := len(n.Log())
	must(t, l.SetConfig(t.Context(), strings.ReplaceAll(l.Config(`{"Type":"vxlan"}`), lab.Network4, "10.9.0.0/16")))
	logged(t, n, mark, "cause=config-refused")
	elsewhere := func() {
		t.Helper()
		must(t, n.Kill())
		must(t, n.Start())
		within(t, "the bridge of the pod is named", func() error { return unready(t, n, "cni0", before["FLANNEL_SUBNET"]) })
	}
	elsewhere()
	envHas(t, n, "FLANNEL_NETWORK", "10.9.0.0/16")
	for range 2 { // a second start there forgets nothing
		elsewhere()
	}
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	must(t, n.Kill())
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	if env, err := n.SubnetEnv(); err != nil || env["FLANNEL_SUBNET"] != before["FLANNEL_SUBNET"] {
		t.Errorf("the subnet is %s, before %s (%v)", env["FLANNEL_SUBNET"], before["FLANNEL_SUBNET"], err)
	}
	reaches(t, "after the return", a, b.IP4)
	within(t, "no lease is left over", func() error {
		leases, err := l.Leases(t.Context())
		if err == nil && len(leases) != len(first) {
			err = fmt.Errorf("the leases are %v, at first %v", leases, first)
		}
		return err
	})
}
