package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/pkg/status"
	"flannel/pkg/windows/hns"
)

// story is a sequence of events on one node.
type story struct {
	name string
	run  func(*console, mode)
}

// TestStart runs node start on new nodes, and then repeats it in
// all the ways in which people repeat it. All nodes run at the same time.
// t.Parallel would limit them to the number of cores, but they wait more than
// they compute.
func TestStart(t *testing.T) {
	t.Parallel()
	var clusters sync.WaitGroup
	for _, c := range []struct {
		mode
		backend string
		stories []story
	}{
		{overlayMode, mixedVXLAN, []story{{"again and rejoined", againAndRejoined}, {"cut off", interrupted},
			{"lost address, renamed adapter", lostAndRenamed},
			{"old HNS", oldHNS}, {"by hand", withoutScript}}},
		{bridgeMode, `{"Type":"host-gw"}`, []story{{"again and rejoined", againAndRejoined},
			{"lost address, renamed adapter", lostAndRenamed}}},
	} {
		clusters.Go(func() {
			t.Run(c.name, func(t *testing.T) {
				l := startCluster(t, len(c.stories), c.backend)
				var nodes sync.WaitGroup
				for i, s := range c.stories {
					nodes.Go(func() { t.Run(s.name, func(t *testing.T) { s.start(t, l, l.Nodes[1+i], c.mode) }) })
				}
				nodes.Wait()
			})
		})
	}
	clusters.Wait()
}

func (s story) start(t *testing.T, l *lab.Lab, n *lab.Node, m mode) {
	s.run(newConsole(t, l, n), m)
	if r := order(t, n, windows.Order{}); len(r.Trouble) > 0 {
		t.Errorf("the simulated machine of %s: %v", n.Name, r.Trouble)
	}
}

// startCluster returns a lab with a Linux node that has a pod, and Windows
// nodes without a network configuration.
func startCluster(t *testing.T, windows int, backend string) *lab.Lab {
	t.Helper()
	l := prepare(t, lab.Options{Kube: true, Nodes: 1 + windows, Windows: windows}, backend)
	must(t, l.Nodes[0].Start())
	must(t, l.Nodes[0].Ready(t.Context()))
	pod(t, l.Nodes[0], "linux")
	for _, n := range l.Nodes[1:] { // node start writes it
		_, err := n.Run(t.Context(), "rm", "/etc/kube-flannel/net-conf.json")
		must(t, err)
	}
	return l
}

// mode is a network mode of node start.
type mode struct {
	name    string // --network-mode
	network string // the HNS network
	kind    string
}

var (
	overlayMode = mode{"overlay", "flannel.4096", hns.Overlay}
	bridgeMode  = mode{"l2bridge", "cbr0", hns.L2Bridge}
)

// flags returns the mandatory flags of node start. All others have their
// defaults.
func (m mode) flags(n *lab.Node) []string {
	return []string{"--management-ip=" + n.IP4.String(), "--network-mode=" + m.name, "--interface-name=" + lab.Adapter,
		"--cluster-cidr=" + lab.Network4}
}

// nodeState is the state of a node after node start has succeeded.
type nodeState struct {
	network hns.Network
	subnet  netip.Prefix
	vip     netip.Addr // invalid with a bridge
}

// checkNode checks a node after node start: the Node, HNS, the arguments of
// kube-proxy, the reserved addresses, and that nothing is left over.
func (c *console) checkNode(m mode) (w nodeState) {
	t := c.t
	t.Helper()
	subnets, err := c.l.Kube.PodCIDRs(t.Context(), c.n.Name)
	must(t, err)
	w.subnet = subnets[0]
	r, err := c.n.Windows.Report()
	must(t, err)
	var names []string
	for _, doc := range r.Networks {
		n, err := hns.DecodeNetwork(doc)
		must(t, err)
		names = append(names, n.Name)
		if n.Name == m.network {
			w.network = n
		}
	}
	slices.Sort(names)
	if want := []string{"External", m.network}; !slices.Equal(names, want) || w.network.Type != m.kind ||
		len(w.network.Subnets) != 1 || w.network.Subnets[0].Prefix != w.subnet {
		t.Fatalf("%s has the networks %q, %+v; its subnet is %s", c.n.Name, names, w.network, w.subnet)
	}
	if adapter := hostOn(t, c.n, "vEthernet ("+lab.Adapter+")"); !slices.ContainsFunc(adapter.Addresses,
		func(p netip.Prefix) bool { return p.Addr() == c.n.IP4 }) {
		t.Errorf("the addresses of the host are %v", adapter.Addresses)
	}
	flags := c.runs("kube-proxy")
	want := []string{"--proxy-mode=kernelspace", "--hostname-override=" + c.n.Name, `--kubeconfig=C:\k\config`,
		"--cluster-cidr=" + lab.Network4,
		"--network-name=" + m.network, "--enable-dsr=true", "--feature-gates=WinDSR=true"}
	if m == bridgeMode {
		want = append(want, "--root-hnsendpoint-name=cbr0_ep")
	}
	for _, flag := range want {
		if !slices.Contains(flags, flag) {
			t.Errorf("kube-proxy lacks %s, its arguments are %q", flag, flags)
		}
	}
	if kubelet := c.runs("kubelet"); !slices.Contains(kubelet, "--hostname-override="+c.n.Name) ||
		!slices.Contains(kubelet, "--node-ip="+c.n.IP4.String()) {
		t.Errorf("the arguments of kubelet are %q", kubelet)
	}
	w.vip = c.vip(flags)
	if m == overlayMode != w.subnet.Contains(w.vip) {
		t.Errorf("the source VIP is %s, of %s: %q", w.vip, w.subnet, flags)
	}
	if got, want := c.reserved(), w.reserved(); !slices.Equal(got, want) {
		t.Errorf("reserved for kube-proxy are %v, want %v", got, want)
	}
	if endpoints := c.endpoints("source-vip"); len(endpoints) != len(w.reserved()) {
		t.Errorf("%d endpoints of the source VIP", len(endpoints))
	}
	// Wine before 10 has no Unix sockets, and status must report that.
	noSockets, _, _ := strings.Cut(status.ErrNoSockets.Error(), " (")
	if !strings.Contains(c.output, "flanneld status") || !strings.Contains(c.output, noSockets) {
		t.Errorf("status prints\n%s", c.output)
	}
	return w
}

func (w nodeState) reserved() (all []string) {
	if w.vip.IsValid() {
		all = append(all, w.network.Name+"/"+w.vip.String())
	}
	return all
}

// vip returns the source VIP in the arguments of kube-proxy.
func (c *console) vip(flags []string) (vip netip.Addr) {
	for _, flag := range flags {
		if text, ok := strings.CutPrefix(flag, "--source-vip="); ok {
			var err error
			vip, err = netip.ParseAddr(text)
			must(c.t, err)
		}
	}
	return vip
}

// reserved returns the addresses of kube-proxy in the store of host-local, as
// network/address.
func (c *console) reserved() (all []string) {
	c.t.Helper()
	out, err := c.n.Run(c.t.Context(), "sh", "-c",
		"cd /var/lib/cni/networks 2>/dev/null && grep -l -r kube-proxy . || true")
	must(c.t, err)
	for line := range strings.Lines(out) {
		all = append(all, strings.TrimPrefix(strings.TrimSpace(line), "./"))
	}
	return all
}

func (c *console) endpoints(name string) (all []hns.Endpoint) {
	c.t.Helper()
	r, err := c.n.Windows.Report()
	must(c.t, err)
	for _, doc := range r.Endpoints {
		e, err := hns.DecodeEndpoint(doc)
		must(c.t, err)
		if e.Name == name {
			all = append(all, e)
		}
	}
	return all
}

// pings creates a pod with the configuration that cni-conf wrote, and exchanges
// pings with one on the Linux node.
func (c *console) pings(w nodeState) *lab.Pod {
	t := c.t
	t.Helper()
	p, linux := pod(t, c.n, "on-"+c.n.Name), c.l.Nodes[0].Pods()["linux"]
	if !w.subnet.Contains(p.IP4) || p.IP4 == w.vip {
		t.Errorf("the address of a pod is %s; the subnet is %s, the source VIP %s", p.IP4, w.subnet, w.vip)
	}
	for _, pair := range [][2]*lab.Pod{{p, linux}, {linux, p}} {
		_, err := pair[0].Reach(t.Context(), pair[1].IP4, long)
		must(t, err)
	}
	return p
}

// changes returns the calls that changed something on the node since the log
// was emptied, except for those that follow other nodes, which are added and
// removed meanwhile.
func (c *console) changes() []string {
	c.t.Helper()
	return slices.DeleteFunc(hnsChanges(c.t, c.n), func(call string) bool {
		return strings.Contains(call, "RemoteSubnetRoute") || strings.Contains(call, "IpForwardEntry2 10.5.")
	})
}

// checkUnchanged checks that another run of node start changed nothing.
func (c *console) checkUnchanged(m mode, before nodeState, what string) {
	c.t.Helper()
	if got := c.changes(); len(got) > 0 {
		c.t.Errorf("%s changed\n%s", what, strings.Join(got, "\n"))
	}
	if after := c.checkNode(m); after.network.ID != before.network.ID || after.vip != before.vip {
		c.t.Errorf("%s: network %s and source VIP %s were %s and %s", what, after.network.ID, after.vip,
			before.network.ID, before.vip)
	}
	if !strings.Contains(c.output, "10-flannel.conf: unchanged") {
		c.t.Errorf("%s: the CNI configuration is not reported as unchanged:\n%s", what, c.output)
	}
}
