package e2e

import (
	"context"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// Of two networks on one host, one can use wireguard. The flanneld of the other says
// so, and leaves the devices alone.
func TestWireGuardForOneOfTwoNetworks(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"wireguard"}`)
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	t.Cleanup(noneForged(t, l))
	n := l.Nodes[0]
	before, err := wgIdentity(t.Context(), n)
	must(t, err)
	f := flood(t, a, b)
	configureSecond(t, l, `{"Type":"wireguard","ListenPort":7777}`)
	s := &second{t: t, l: l, node: n}
	s.launch()
	within(t, "the second is refused", func() error {
		// The error names its networks. (The status of a flanneld that is not ready is a failure.)
		return says(t, n, "[10.9.0.0/16]", "sh", "-c", l.Flanneld()+" "+secondFile+" status --json || true")
	})
	must(t, n.Kill())
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	checkSame(t, "the first's devices", before, func(ctx context.Context) (string, error) { return wgIdentity(ctx, n) })
	configureSecond(t, l, `{"Type":"vxlan","VNI":2}`)
	s.ready()
	checkSame(t, "the first's devices", before, func(ctx context.Context) (string, error) {
		return try(ctx, n.Namespaces, `echo flannel-wg $(cat /sys/class/net/flannel-wg/ifindex) $(wg show flannel-wg public-key) $(wg show flannel-wg listen-port)
			cat /run/flannel/wgkey | wg pubkey; pgrep wireguard-go || true`)
	})
	f.checkNoLoss(t, "a second network that wants the device, too")
}
