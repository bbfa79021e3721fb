package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// testIPv4Alone starts a dual-stack cluster with a backend that has IPv4 alone. The nodes
// warn, publish IPv4 alone, and reach each other by it, as they do a peer with a
// dual-stack lease: 10.5.7.0/24 at 192.168.100.77.
func testIPv4Alone(t *testing.T, config, kind string) *lab.Lab {
	t.Helper()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, config+apart)
	n := l.Nodes[0]
	logged(t, n, 0, "cause=config-warning")
	for key, v := range leases(t, l) {
		if strings.Contains(key, "&") || v.PublicIP == "" || v.PublicIPv6 != nil {
			t.Errorf("the lease %s is not of IPv4 alone: %+v", key, v)
		}
	}
	six := "fd00:100::77"
	putLease(t, l, "10.5.7.0-24&fd05:0:0:7::-64", &value{PublicIP: "192.168.100.77", PublicIPv6: &six, BackendType: kind})
	within(t, "a dual-stack peer is accepted", func() error {
		r, err := reportOf(t, n)
		if err == nil && !slices.ContainsFunc(r.Peers, func(p status.Peer) bool {
			return p.State == status.UpToDate && slices.Contains(p.PublicIPs, netip.MustParseAddr("192.168.100.77"))
		}) {
			err = fmt.Errorf("the peers are %+v", r.Peers)
		}
		return err
	})
	becomesReady(t, n)
	must(t, silent(t, n, "fd05:", "ip", "-6", "route")) // the peer is up to date
	env, err := n.SubnetEnv()
	must(t, err)
	if _, has := env["FLANNEL_IPV6_SUBNET"]; has {
		t.Errorf("subnet.env has IPv6: %v", env)
	}
	a, b := pair(t, l)
	reaches(t, "IPv4", a, b.IP4)
	reaches(t, "IPv4", b, a.IP4)
	return l
}

func TestUDPDualStack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"udp", ""} {
		t.Run("a peer of type "+kind, func(t *testing.T) { testIPv4Alone(t, `{"Type":"udp"}`, kind) })
	}
}

// In a dual-stack cluster, running nodes refuse a backend that has IPv4 alone, because
// pods would lose their IPv6 addresses. A restart adopts it, and the way back, and the
// nodes keep the IPv4 subnets that their pods have.
func TestBackendOfFewerFamilies(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`, atOnce)
	a, b := pair(t, l)
	subnets := func() (v4 []string, dual int) {
		for key := range leases(t, l) {
			four, _, both := strings.Cut(key, "&")
			v4 = append(v4, four)
			if both {
				dual++
			}
		}
		slices.Sort(v4)
		return v4, dual
	}
	before, _ := subnets()
	for _, c := range []struct {
		kind string
		dual int
	}{{"udp", 0}, {"vxlan", 2}} {
		marks := []int{len(l.Nodes[0].Log()), len(l.Nodes[1].Log())}
		must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"`+c.kind+`"}`)))
		for i, n := range l.Nodes {
			loggedNaming(t, n, marks[i], "config-refused", "error", "udp", "IPv6")
		}
		reaches(t, "before the restart", a, b.IP4)
		for _, n := range l.Nodes {
			_, err := n.Stop(t.Context())
			must(t, err)
			must(t, n.Start(atOnce))
		}
		for _, n := range l.Nodes {
			must(t, n.Ready(t.Context()))
		}
		if after, dual := subnets(); !slices.Equal(after, before) || dual != c.dual {
			t.Errorf("with %s the nodes have %v, %d of them dual-stack; before they had %v", c.kind, after, dual, before)
		}
		reaches(t, "with "+c.kind, a, b.IP4)
		reaches(t, "with "+c.kind, b, a.IP4)
	}
	reaches(t, "by IPv6, new pods", pod(t, l.Nodes[0], "c"), pod(t, l.Nodes[1], "d").IP6)
}
