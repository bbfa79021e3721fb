//go:build kubeproxy

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/internal/test/kubetest/cluster"
)

// TestKubeProxy runs the real kube-proxy.exe together with flanneld.exe, with
// the flags that source-vip prints: the objects that it creates in HNS for
// those of flanneld, and that it keeps them whatever happens to flanneld.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 3, Windows: 1}, mixedVXLAN)
	p := newProxied(t, l, l.Nodes[2])
	p.far, p.near = pod(t, l.Nodes[0], "far"), pod(t, p.w, "near")
	reachAllPods(t, []*lab.Pod{p.far, p.near})
	source := p.source(t)
	p.start(t)
	p.first = p.service(t, "first", map[string][]netip.Addr{l.Nodes[0].Name: {p.far.IP4}, p.w.Name: {p.near.IP4}})
	p.balances(t, p.first, p.toFar(), p.toNear())
	reachAllPods(t, []*lab.Pod{p.far, p.near})
	before := p.currentState(t)

	t.Run("another lease", func(t *testing.T) { p.anotherLease(t, before) })
	t.Run("flanneld restarted", func(t *testing.T) {
		unchanged(t, l, p.w, "-iface="+p.w.IP4.String())
		// Once this exists, kube-proxy has checked the network again.
		third := p.service(t, "third", map[string][]netip.Addr{l.Nodes[0].Name: {p.far.IP4}})
		p.balances(t, third, p.toFar())
		p.kept(t, before)
		p.withdraw(t, "third", third)
		p.kept(t, before)
	})
	if strings.Contains(p.proxy.Log(), networkChanged) {
		t.Error("kube-proxy detected another network")
	}
	t.Run("kube-proxy restarted", func(t *testing.T) {
		must(t, p.proxy.Kill())
		p.start(t)
		withinOf(t, 2*long, "it has deleted the old load balancers",
			func() error { return p.hasNone(before.balancers) })
		p.balances(t, p.first, p.toFar(), p.toNear())
		if after := p.source(t); after.ID != source.ID {
			t.Errorf("the source VIP's endpoint was %+v, is %+v", source, after)
		}
	})
	t.Run("network lost", func(t *testing.T) { p.networkLost(t) })
	reachAllPods(t, []*lab.Pod{p.far, p.near})
	must(t, p.proxy.Kill())
	// Only errors of the machine are checked, because handles of a killed kube-proxy
	// may be open.
	if trouble := order(t, p.w, windows.Order{}).Trouble; len(trouble) > 0 {
		t.Errorf("the simulated machine: %v", trouble)
	}
}

// kube-proxy reads the policies of a lease when its subnet gets the first
// endpoint, not only at its start. When a lease is removed, the objects of
// others stay.
func (p *proxied) anotherLease(t *testing.T, before state) {
	at, theirs := netip.MustParseAddr("192.168.100.200"), netip.MustParseAddr("10.5.200.7")
	peer := cluster.Peer{Name: "peer", PodCIDR: netip.MustParsePrefix("10.5.200.0/24"), Annotations: map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/backend-type": "vxlan",
		"flannel.alpha.coreos.com/public-ip":    at.String(),
		"flannel.alpha.coreos.com/backend-data": `{"VNI":4096,"VtepMAC":"02:00:00:00:00:07"}`,
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

// A new network has a new ID: kube-proxy deletes all objects, and creates them
// again by itself.
func (p *proxied) networkLost(t *testing.T) {
	before, id := p.currentState(t), networkNow(t, p.w).ID
	order(t, p.w, windows.Order{DeleteNetwork: p.network})
	withinOf(t, long, "the network is created again", func() error {
		switch n, err := networkOf(p.w); {
		case err != nil:
			return err
		case n.ID == id:
			return errors.New("it is still there")
		}
		return ready(t, p.w)
	})
	// It checks every 30 s: the first time it deletes all objects, the second time it
	// creates them again.
	withinOf(t, 2*long, "kube-proxy deletes its objects", func() error { return p.hasNone(before.balancers) })
	p.balances(t, p.first, p.toFar()) // the other pod was deleted with the network
	within(t, "kube-proxy logs why", func() error {
		if !strings.Contains(p.proxy.Log(), networkChanged) {
			return fmt.Errorf("%q is missing", networkChanged)
		}
		return nil
	})
	p.source(t)
	must(t, p.near.Delete(t.Context())) // as kubelet does before it creates the pod again
	p.near = pod(t, p.w, p.near.Name)
	fourth := p.service(t, "fourth", map[string][]netip.Addr{p.l.Nodes[0].Name: {p.far.IP4}, p.w.Name: {p.near.IP4}})
	p.balances(t, fourth, p.toFar(), p.toNear())
	p.withdraw(t, "fourth", fourth)
}

// A VNI that HNS accepts but kube-proxy cannot read. flanneld warns about it.
func TestKubeProxyCannotReadVNI(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 2, Windows: 1}, `{"Type":"vxlan","VNI":65536,"Port":4789}`)
	loggedNaming(t, l.Nodes[1], 0, "config-warning", "msg", "65536", "65535", "kube-proxy")
	p := newProxied(t, l, l.Nodes[1])
	p.start(t)
	withinOf(t, 2*long, "kube-proxy cannot read the policy", func() error {
		if !strings.Contains(p.proxy.Log(), policyUnreadable) {
			return errors.New("not logged yet")
		}
		return nil
	})
}

// networkChanged is the message of kube-proxy when the ID of the network has
// changed and it starts again.
const networkChanged = "The HNS network is not present or has changed since the last sync"

// policyUnreadable is the message of kube-proxy about a policy with numbers
// that it cannot read.
const policyUnreadable = "failed to unmarshal Remote Subnet policy settings"
