//go:build kubeproxy

package e2e

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/subnet/kube/kubetest/cluster"
)

// TestKubeProxy runs the real kube-proxy.exe beside flanneld.exe, with the flags that source-vip answers: what it makes in
// HNS of what flanneld keeps there, and that it keeps it whatever becomes of flanneld.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 3, Windows: 1}, mixedVXLAN)
	p := newProxied(t, l, l.Nodes[2])
	p.far, p.near = pod(t, l.Nodes[0], "far"), pod(t, p.w, "near")
	everyPod(t, []*lab.Pod{p.far, p.near})
	source := p.source(t)
	p.start(t)
	p.first = p.service(t, "first", map[string][]netip.Addr{l.Nodes[0].Name: {p.far.IP4}, p.w.Name: {p.near.IP4}})
	p.balances(t, p.first, p.toFar(), p.toNear())
	everyPod(t, []*lab.Pod{p.far, p.near})
	before := p.now(t)

	t.Run("another lease", func(t *testing.T) { p.anotherLease(t, before) })
	t.Run("flanneld restarted", func(t *testing.T) {
		unchanged(t, l, p.w, "-iface="+p.w.IP4.String())
		// kube-proxy has looked at the network once more when this is there.
		third := p.service(t, "third", map[string][]netip.Addr{l.Nodes[0].Name: {p.far.IP4}})
		p.balances(t, third, p.toFar())
		p.kept(t, before)
		p.withdraw(t, "third", third)
		p.kept(t, before)
	})
	if strings.Contains(p.proxy.Log(), networkChanged) {
		t.Error("kube-proxy found another network")
	}
	t.Run("kube-proxy restarted", func(t *testing.T) {
		must(t, p.proxy.Kill())
		p.start(t)
		withinOf(t, 2*long, "it has begun anew", func() error { return p.hasNone(before.balancers) })
		p.balances(t, p.first, p.toFar(), p.toNear())
		if now := p.source(t); now.ID != source.ID {
			t.Errorf("the source VIP's endpoint was %+v, is %+v", source, now)
		}
	})
	t.Run("network lost", func(t *testing.T) { p.networkLost(t) })
	everyPod(t, []*lab.Pod{p.far, p.near})
	must(t, p.proxy.Kill())
	// Handles of a kube-proxy that was killed stay open in the simulated HNS: only its troubles count.
	if trouble := order(t, p.w, windows.Order{}).Trouble; len(trouble) > 0 {
		t.Errorf("the simulated machine: %v", trouble)
	}
}

// A lease is read from our policies when the first endpoint of its subnet comes, not at kube-proxy's start alone; and what
// is of other leases stays when one ends.
func (p *proxied) anotherLease(t *testing.T, before state) {
	at, theirs := netip.MustParseAddr("192.168.100.200"), netip.MustParseAddr("10.5.200.7")
	peer := cluster.Peer{Name: "peer", PodCIDR: netip.MustParsePrefix("10.5.200.0/24"), Annotations: map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/backend-type": "vxlan",
		"flannel.alpha.coreos.com/public-ip": at.String(), "flannel.alpha.coreos.com/backend-data": `{"VNI":4096,"VtepMAC":"02:00:00:00:00:07"}`,
	}}
	must(t, p.l.Kube.AddPeer(t.Context(), 0, peer))
	withinOf(t, long, "the policy of the lease", func() error { return p.hasPolicy(peer.PodCIDR, true) })
	second := p.service(t, "second", map[string][]netip.Addr{peer.Name: {theirs}})
	p.balances(t, second, backend{theirs, at})
	must(t, p.l.Kube.Client.CoreV1().Nodes().Delete(t.Context(), peer.Name, metav1.DeleteOptions{}))
	withinOf(t, long, "no policy without the lease", func() error { return p.hasPolicy(peer.PodCIDR, false) })
	p.withdraw(t, "second", second, theirs)
	p.kept(t, before)
}

// With the network its ID goes: kube-proxy drops all, and comes again by itself.
func (p *proxied) networkLost(t *testing.T) {
	before, id := p.now(t), networkNow(t, p.w).ID
	order(t, p.w, windows.Order{DeleteNetwork: p.network})
	withinOf(t, long, "the network is made again", func() error {
		switch n, err := networkOf(p.w); {
		case err != nil:
			return err
		case n.ID == id:
			return errors.New("it is still there")
		}
		return ready(t, p.w)
	})
	// Every 30 s it looks: it drops all the first time, and makes it again the second.
	withinOf(t, 2*long, "kube-proxy drops what it had", func() error { return p.hasNone(before.balancers) })
	p.balances(t, p.first, p.toFar()) // the other pod went with the network
	if !strings.Contains(p.proxy.Log(), networkChanged) {
		t.Errorf("kube-proxy does not say %q", networkChanged)
	}
	p.source(t)
	must(t, p.near.Delete(t.Context())) // as its kubelet does, to make it anew
	p.near = pod(t, p.w, p.near.Name)
	fourth := p.service(t, "fourth", map[string][]netip.Addr{p.l.Nodes[0].Name: {p.far.IP4}, p.w.Name: {p.near.IP4}})
	p.balances(t, fourth, p.toFar(), p.toNear())
	p.withdraw(t, "fourth", fourth)
}

// A VNI that HNS takes and kube-proxy cannot read, so that flanneld warns of it.
func TestKubeProxyCannotReadVNI(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 2, Windows: 1}, `{"Type":"vxlan","VNI":65536,"Port":4789}`)
	if log := l.Nodes[1].Records(0); len(log.With("cause=config-warning").Naming("msg", "65536", "65535", "kube-proxy")) == 0 {
		t.Error("flanneld.exe does not warn")
	}
	p := newProxied(t, l, l.Nodes[1])
	p.start(t)
	withinOf(t, 2*long, "kube-proxy cannot read the policy", func() error {
		if !strings.Contains(p.proxy.Log(), policyUnreadable) {
			return errors.New("it has not said so")
		}
		return nil
	})
}

// networkChanged is what kube-proxy says when the network's ID is another, and it has to begin anew.
const networkChanged = "The HNS network is not present or has changed since the last sync"

// policyUnreadable is what kube-proxy says of a policy with numbers that it cannot read.
const policyUnreadable = "failed to unmarshal Remote Subnet policy settings"
