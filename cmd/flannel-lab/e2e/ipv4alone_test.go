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
	must(t, ready(t, n))
	must(t, silent(t, n, "fd05:", "ip", "-6", "route"))
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
