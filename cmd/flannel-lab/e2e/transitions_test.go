package e2e

import (
	"context"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// alike are configurations of the backends that need no module of the kernel.
// With each of them, pods of two nodes reach each other.
var alike = []string{
	`{"Type":"vxlan"}`,
	`{"Type":"host-gw"}`,
	`{"Type":"wireguard"}`,
	`{"Type":"udp"}`,
	`{"Type":"extension","SubnetAddCommand":"ip route replace $SUBNET via $PUBLIC_IP","SubnetRemoveCommand":"ip route del $SUBNET via $PUBLIC_IP"}`,
}

// TestEveryBackendAfterEveryOther changes the backend of running nodes.
func TestEveryBackendAfterEveryOther(t *testing.T) {
	t.Parallel()
	changeAlong(t, amongAll(alike, len(alike)))
}

// amongAll returns a way from each of the first n configurations to each other one, and
// back.
func amongAll(all []string, n int) (way []string) {
	for i, c := range all[:n] {
		way = append(way, c)
		for _, other := range all[i+1:] {
			way = append(way, other, c)
		}
	}
	return way
}

// changeAlong changes the configuration of two running nodes, and checks that they
// have the same as nodes on which only this backend has run.
func changeAlong(t *testing.T, way []string) {
	t.Helper()
	l := bare(t, lab.Options{Nodes: 2})
	fresh := map[string][]string{} // what the nodes have
	var a, b *lab.Pod
	for _, c := range way {
		if fresh[c] != nil {
			continue
		}
		must(t, l.SetConfig(t.Context(), l.Config(c)))
		must(t, l.StartAll(t.Context(), atOnce))
		if a == nil {
			a, b = pair(t, l)
		}
		must(t, reach(t.Context(), a, b))
		must(t, reach(t.Context(), b, a))
		for _, n := range l.Nodes {
			has, err := belongings(t.Context(), n)
			must(t, err)
			fresh[c] = append(fresh[c], has)
		}
		for _, n := range l.Nodes {
			stopped(t, n)
			in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
			if c == alike[4] { // cleanup does not touch what commands made
				in(t, n.Namespaces, "ip route flush root 10.5.0.0/16 proto boot")
			}
		}
	}
	must(t, l.SetConfig(t.Context(), l.Config(way[0])))
	must(t, l.StartAll(t.Context(), atOnce))
	for _, c := range way {
		must(t, l.SetConfig(t.Context(), l.Config(c)))
		for i, n := range l.Nodes {
			eventually(t, n.Name+" after a change to "+c, fresh[c][i], func(ctx context.Context) (string, error) { return belongings(ctx, n) })
		}
		must(t, reach(t.Context(), a, b))
		must(t, reach(t.Context(), b, a))
	}
}

// belongings returns what backends make on a node: devices, entries of the
// kernel, peers of WireGuard, policies of XFRM, processes and UDP sockets.
func belongings(ctx context.Context, n *lab.Node) (string, error) {
	has, err := kernel(ctx, n)
	if err != nil {
		return "", err
	}
	more, err := try(ctx, n.Namespaces, `wg show all dump 2>/dev/null | awk 'NF==9 {print $1, $2, $4, $5}'
		ip xfrm policy | grep 'src 10[.]5[.]' | sort
		for p in $(pgrep wireguard-go; pgrep charon); do
			[ "$(readlink /proc/$p/ns/net)" != "$(readlink /proc/self/ns/net)" ] || cat /proc/$p/comm
		done
		ls -d /run/wireguard/* /run/flannel/* 2>/dev/null | grep -v wgkey || true
		ss -Hlun | awk '{print $4}' | sort`)
	return has + "\n" + words(more), err
}
