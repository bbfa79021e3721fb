package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// bridgeOf prints the addresses of a bridge that are not link-local.
func bridgeOf(name string) string {
	return "ip -o addr show dev " + name + ` scope global | awk '{print $4}' | tr '\n' ' '`
}

// formerMachine is a node with a bridge of pods, under a name of its own, that has the
// addresses of this node's former subnets, and a peer that has these subnets now.
func formerMachine(t *testing.T) *machine {
	m := newMachine(t)
	m.state.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("2001:cafe:42:1::/64")}
	m.former = []netip.Prefix{netip.MustParsePrefix("10.5.8.0/24"), netip.MustParsePrefix("10.5.9.0/24"), netip.MustParsePrefix("2001:cafe:42:9::/64")}
	m.state.Paths = append(m.state.Paths, peerPaths(9)...)
	run(t, `ip link add pods type bridge; ip link set pods up
		ip addr add 10.5.9.1/24 dev pods; ip addr add 2001:cafe:42:9::1/64 dev pods nodad`)
	return m
}

// A bridge without pods loses the gateways of this node's former subnets, which the CNI
// plugin bridge would leave there, and with them the routes that hide a peer's.
func TestBridgeOfFormerSubnet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := formerMachine(t)
		// Similar addresses of others: of another length, of a subnet that never was this
		// node's, and of a device that is no bridge.
		run(t, `ip link add other type bridge; ip addr add 10.5.9.1/25 dev other; ip addr add 10.5.7.1/24 dev other; ip addr add 10.5.9.2/24 dev other
			ip link add veth0 type veth peer name veth1; ip addr add 10.5.8.1/24 dev veth0`)
		m.mustPass()
		for name, want := range map[string]string{"pods": "", "other": "10.5.9.1/25 10.5.7.1/24 10.5.9.2/24", "veth0": "10.5.8.1/24"} {
			becomes(t, name, bridgeOf(name), want)
		}
		run(t, "ip addr flush dev other")
		for _, command := range []string{"ip route show 10.5.9.0/24", "ip -6 route show 2001:cafe:42:9::/64"} {
			becomes(t, command, command+` | grep -o 'dev .*proto 70' | sed 's/ nhid.*//; s/ metric.*//'`, map[bool]string{false: "dev flannel.1 proto 70", true: "dev flannel-v6.1 proto 70"}[command[3] == '-'])
		}
		// An ADD that had read the former subnet file.
		m.serve()
		run(t, "ip addr add 10.5.9.1/24 dev pods")
		becomes(t, "later", bridgeOf("pods"), "")
	})
}

// Docker's default bridge is Docker's, with and without containers.
func TestDockersBridge(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := formerMachine(t)
		run(t, "ip link add docker0 type bridge; ip link set docker0 up; ip addr add 10.5.8.1/24 dev docker0")
		m.mustPass()
		becomes(t, "the pods' bridge", bridgeOf("pods"), "")
		becomes(t, "without containers", bridgeOf("docker0"), "10.5.8.1/24")
		run(t, "ip link add veth0 type veth peer name veth1; ip link set veth0 master docker0 up")
		m.QueueResync()
		m.mustPass()
		becomes(t, "with a container", bridgeOf("docker0"), "10.5.8.1/24")
	})
}

// A bridge with pods keeps its addresses until the last of them has left.
func TestBridgeWithFormerPods(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := formerMachine(t)
		m.state.Paths = m.state.Paths[:len(m.state.Paths)-1] // the peer has the IPv4 subnet only
		run(t, `for i in 1 2; do ip link add veth$i type veth peer name pod$i; ip link set veth$i master pods up; done`)
		const addresses = "10.5.9.1/24 2001:cafe:42:9::1/64"
		for range 2 { // also without a notification in between
			found, ok := errors.AsType[*dataplane.FormerSubnetError](m.pass())
			if !ok || found.Bridge != "pods" || fmt.Sprint(found.Addresses) != "[10.5.9.1/24]" || found.Node != "n7" {
				t.Fatalf("%+v", found)
			}
		}
		before := m.pass().Error()
		all := m.state.Paths
		m.state.Paths = append(slices.Clone(all), peerPaths(9)[1]) // both families in one pass
		if err := m.pass(); err == nil || err.Error() != before {
			t.Errorf("when the peer has the IPv6 subnet, the error becomes %v, was %s", err, before)
		}
		becomes(t, "the peer has both subnets", bridgeOf("pods"), "10.5.9.1/24")
		m.state.Paths = all
		run(t, "ip addr add 2001:cafe:42:9::1/64 dev pods nodad")
		run(t, "ip link del veth1")
		m.QueueResync()
		if err := m.pass(); err == nil || err.Error() != before { // otherwise each pod that leaves is another problem
			t.Errorf("the error becomes %v, was %s", err, before)
		}
		m.serve()
		becomes(t, "one pod is left", bridgeOf("pods"), addresses)
		run(t, "ip addr del 10.5.9.1/24 dev pods")
		eventually.Nil(t, "without the IPv4 address", m.pass) // the delegate adds an IPv6 address beside the former one
		run(t, "ip link set veth2 nomaster")
		becomes(t, "no pod is left", bridgeOf("pods"), "")
	})
}

// A bridge with pods loses the IPv6 gateway of a former subnet when a peer has the subnet, whose route it would hide. The
// node is ready before and after, as new pods can start.
func TestPeerHasFormerIPv6Subnet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := formerMachine(t)
		run(t, `ip link add veth0 type veth peer name pod0; ip link set veth0 master pods up; ip link set pod0 up
			ip addr del 10.5.9.1/24 dev pods; ip addr add 2001:cafe:42:1::1/64 dev pods nodad`)
		all := m.state.Paths
		m.state.Paths = all[:len(all)-1]
		m.mustPass()
		becomes(t, "nobody has the subnet", bridgeOf("pods"), "2001:cafe:42:1::1/64 2001:cafe:42:9::1/64")
		stays := func(what string, change func(s *dataplane.State)) {
			t.Helper()
			s := m.state
			s.Paths = slices.Clone(all)
			change(&s)
			if err := m.LeaveSubnets(m.former, "n7"); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if _, err := m.Apply(t.Context(), m.links, s); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			becomes(t, what, bridgeOf("pods"), "2001:cafe:42:1::1/64 2001:cafe:42:9::1/64")
		}
		stays("nothing may be deleted", func(s *dataplane.State) { s.Keep = true })
		run(t, "ip addr add fd00:100::77/128 dev eth0 nodad")
		stays("the peer's route is refused", func(s *dataplane.State) {
			s.Paths[len(all)-1] = peersRoute("2001:cafe:42:9::/64", "fd00:100::77")
		})
		stays("a route that the bridge's does not hide", func(s *dataplane.State) {
			smaller := *all[len(all)-1]
			smaller.Dst = netip.MustParsePrefix("2001:cafe:42:9::/80")
			s.Paths[len(all)-1] = &smaller
		})
		stays("the bridge is the underlay", func(s *dataplane.State) {
			s.Underlay = []netip.Prefix{netip.MustParsePrefix("2001:cafe:42:1::1/128"), netip.MustParsePrefix("2001:cafe:42::/56")}
		})
		m.state.Paths = all
		m.mustPass()
		becomes(t, "a peer has the subnet", bridgeOf("pods"), "2001:cafe:42:1::1/64")
		becomes(t, "packets for the peer", "ip -6 route get 2001:cafe:42:9::5 | grep -o 'dev [^ ]*'", "dev flannel-v6.1")
		m.serve()
		run(t, "ip addr add 2001:cafe:42:9::1/64 dev pods nodad") // an ADD that had read the former subnet file
		becomes(t, "added later", bridgeOf("pods"), "2001:cafe:42:1::1/64")
	})
}
