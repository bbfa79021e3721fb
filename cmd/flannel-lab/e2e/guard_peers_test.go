package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

const enforcing = `{"Type":"vxlan","Guard":"enforce","GuardTrial":0}` + apart

// A node whose tunnel's packets are translated tells the others from where they come.
func TestGuardTranslatedPeer(t *testing.T) {
	t.Parallel()
	s := &guardTest{l: start(t, lab.Options{Nodes: 2}, enforcing)}
	n, other := s.l.Nodes[0], s.l.Nodes[1]
	s.a, s.b = pair(t, s.l)
	must(t, reach(t.Context(), s.a, s.b))
	const source = "192.168.100.98"
	shell(t, n.Namespaces, `nft add table ip translate
		nft add chain ip translate out '{ type filter hook postrouting priority 300; }'
		nft add rule ip translate out udp dport 8472 ip saddr set %s`, source)
	before := s.counted(t, other, "outsider")
	within(t, "what comes from the other address is dropped", func() error {
		_, _ = s.a.Ping(t.Context(), s.b.IP4)
		if s.counted(t, other, "outsider") == before {
			return fmt.Errorf("nothing is")
		}
		return nil
	})
	within(t, "the doctor's advice", func() error {
		return says(t, other, "--tunnel-source", "sh", "-c", s.l.Flanneld()+" doctor || true")
	})
	stopped(t, n)
	must(t, n.Start("--tunnel-source="+source))
	must(t, n.Ready(t.Context()))
	_, value := leaseOf(t, s.l, n)
	var lease struct{ BackendData struct{ Sources []string } }
	must(t, json.Unmarshal([]byte(value), &lease))
	if len(lease.BackendData.Sources) != 1 || lease.BackendData.Sources[0] != source {
		t.Errorf("the lease is %s; want the source %s", value, source)
	}
	within(t, "the other node knows the source", func() error {
		return says(t, other, source, "nft", "list", "set", "inet", "flannel-guard", "peers4")
	})
	check := noneForged(t, s.l)
	f := flood(t, s.a, s.b)
	s.listen(t)
	s.legitimate(t)
	s.outlives(t)
	f.checkNoLoss(t, "a translated peer")
	check()
}

// A node of flannel, by the entries that flannel makes, behind guards that enforce.
func TestGuardWithFlannel(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, enforcing)
	ours, flannels := l.Nodes[0], newRelic(l.Nodes[1], 22)
	must(t, ours.Start())
	must(t, ours.Ready(t.Context()))
	flannels.leave(t, l, relicOf(t, l, ours))
	a, b := pair(t, l)
	waitSynced(t, l, ours)
	within(t, "the guard enforces", func() error { return (&guardTest{l: l}).enforces(t, ours) })
	check := noneForgedBy(t, ours)
	must(t, reach(t.Context(), a, b))
	f := flood(t, a, b)
	s := &guardTest{l: l, a: a, b: b}
	for _, v6 := range []bool{false, true} {
		s.v6 = v6
		pod, host := s.of(a.IP4, a.IP6), s.of(flannels.node.IP4, flannels.node.IP6)
		_, err := flannels.node.Ping(t.Context(), pod) // by flannel's host, from its tunnel
		must(t, err)
		shell(t, flannels.node.Namespaces, "ping -q -c 1 -W 10 -I %s %s", host, pod)
		_, err = a.Ping(t.Context(), host)
		must(t, err)
		_, err = ours.Ping(t.Context(), s.of(b.IP4, b.IP6))
		must(t, err)
	}
	// Peers come and go, and the daemon is killed.
	third := stranger(ours, 23)
	for range 3 {
		third.publish(t, l)
		within(t, "the third node is a peer", func() error { return says(t, ours, third.four, l.Flanneld(), "status", "--peers") })
		_, err := etcdClient(t, l).Delete(t.Context(), subnetKeys+third.key())
		must(t, err)
		within(t, "the third node is gone", func() error { return silent(t, ours, third.four, "ip", "route") })
	}
	must(t, ours.Kill())
	must(t, ours.Start())
	within(t, "the daemon is ready again", func() error { return ours.Ready(t.Context()) })
	f.checkNoLoss(t, "flannel's pods and ours")
	check()
}

// relicOf describes one of our nodes to flannel.
func relicOf(t *testing.T, l *lab.Lab, n *lab.Node) *relic {
	t.Helper()
	key, text := leaseOf(t, l, n)
	var v value
	must(t, json.Unmarshal([]byte(text), &v))
	four, six, _ := strings.Cut(key, "&")
	return &relic{node: n, four: strings.TrimSuffix(four, ".0-24"), six: strings.TrimSuffix(six, "::-64"),
		mac: v.BackendData.VtepMAC, mac6: v.BackendV6Data.VtepMAC}
}
