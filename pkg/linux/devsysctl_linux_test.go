package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// parameters prints those of flanneld's devices.
const parameters = `cd /proc/sys/net; grep -H . ipv4/conf/flannel.1/forwarding ipv4/conf/flannel.1/rp_filter ipv6/conf/flannel.1/accept_ra \
	ipv6/conf/flannel-v6.1/disable_ipv6 ipv6/conf/flannel-v6.1/accept_ra`

// becomes waits until a shell command succeeds and prints something.
func becomes(t *testing.T, what, command, want string) {
	t.Helper()
	eventually.Nil(t, what, func() error {
		out, err := exec.Command("sh", "-ec", command).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			return fmt.Errorf("it is (%v)\n%s\nwant\n%s", err, got, want)
		}
		return nil
	})
}

// A new device inherits parameters with which it forwards nothing, or cannot have its
// addresses.
func TestDeviceInheritsParameters(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
			sysctl -qw net.ipv4.conf.default.forwarding=0 net.ipv4.conf.default.rp_filter=1 net.ipv6.conf.default.disable_ipv6=1`)
		m.mustPass()
		want := strings.Join([]string{"ipv4/conf/flannel.1/forwarding:1", "ipv4/conf/flannel.1/rp_filter:2", "ipv6/conf/flannel.1/accept_ra:0",
			"ipv6/conf/flannel-v6.1/disable_ipv6:0", "ipv6/conf/flannel-v6.1/accept_ra:0"}, "\n")
		becomes(t, "the first pass", parameters, want)
		// A daemon that starts finds a device as somebody has left it.
		run(t, `sysctl -qw net.ipv4.conf.flannel/1.forwarding=0 net.ipv4.conf.flannel/1.rp_filter=1 net.ipv6.conf.flannel-v6/1.disable_ipv6=1`)
		m.restart()
		m.mustPass()
		becomes(t, "after the start", parameters, want)
		// What somebody changes later is undone on the kernel's notification.
		m.serve()
		for _, change := range []string{
			"net.ipv4.conf.flannel/1.forwarding=0", "net.ipv4.conf.flannel/1.rp_filter=1", "net.ipv6.conf.flannel-v6/1.disable_ipv6=1",
		} {
			start := time.Now()
			run(t, "sysctl -qw %s", change)
			becomes(t, change, parameters, want)
			t.Logf("%s: undone after %v", change, time.Since(start).Round(time.Millisecond))
		}
		becomes(t, "addresses", "ip -br -6 addr show dev flannel-v6.1 | grep -c 2001:cafe:42:1::", "1")
	})
}

// The strict filter of "all" does not hold for flanneld's devices, since the larger of two
// values is in force. A looser filter stays as it is.
func TestStrictFilterOfAll(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		const filter = "cat /proc/sys/net/ipv4/conf/flannel.1/rp_filter"
		becomes(t, "without a filter", filter, "0")
		m.serve()
		run(t, "sysctl -qw net.ipv4.conf.all.rp_filter=1")
		becomes(t, "strict for all", filter, "2")
		// The kernel itself: a packet that another node sends from its address on the underlay.
		const asked = "ip route get 10.5.1.9 from 192.168.100.2 iif flannel.1 2>&1 | grep -c 'dev pods' || true"
		run(t, "ip link add pods type bridge; ip addr add 10.5.1.1/24 dev pods; ip link set pods up")
		becomes(t, "loose", asked, "1")
	})
}

// Parameters of devices of others are named, and not changed.
func TestForeignDevices(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.state.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}
		m.mustPass()
		m.serve()
		named := func(path string) {
			t.Helper()
			eventually.Nil(t, path+" is named", func() error { // a pass reads it after the notification
				var found *dataplane.NotForwardingError
				err := m.pass()
				if errors.As(err, &found) && found.Sysctl == path && strings.Contains(err.Error(), "sysctl -w "+path+"=1") {
					return nil
				}
				return fmt.Errorf("the pass has the error %w", err)
			})
			if value := run(t, "cat /proc/sys/%s", path); value != "0\n" {
				t.Errorf("%s was changed to %q", path, value)
			}
		}
		run(t, `sysctl -qw net.ipv4.conf.default.forwarding=0
			ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up`)
		named("net/ipv4/conf/cni0/forwarding")
		run(t, "sysctl -qw net.ipv4.conf.cni0.forwarding=1")
		m.mustPass()
		run(t, "sysctl -qw net.ipv4.conf.eth0.forwarding=0") // no path leads through it without a tunnel
		m.mustPass()
		m.mu.Lock()
		m.state.Paths = append(slices.Clone(m.state.Paths), &dataplane.Path{Dst: netip.MustParsePrefix("10.5.7.0/24"),
			Via: netip.MustParseAddr("192.168.100.7"), Device: "eth0", Encap: dataplane.Direct{}})
		m.mu.Unlock()
		named("net/ipv4/conf/eth0/forwarding")
		run(t, "sysctl -qw net.ipv4.conf.eth0.forwarding=1")
		m.mustPass()
	})
}

// Without IPv4, its forwarding may be off on the host, and on the pods' devices.
func TestForwardingOfIPv6Alone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		isV4 := func(p netip.Prefix) bool { return p.Addr().Is4() }
		m.state.Networks = slices.DeleteFunc(slices.Clone(m.state.Networks), isV4)
		m.state.Subnets = []netip.Prefix{netip.MustParsePrefix("2001:cafe:42:1::/64")}
		m.state.Paths = slices.DeleteFunc(slices.Clone(m.state.Paths), func(p *dataplane.Path) bool { return isV4(p.Dst) })
		run(t, "sysctl -qw net.ipv4.ip_forward=0; ip link add cni0 type bridge; ip addr add 2001:cafe:42:1::1/64 dev cni0 nodad; ip link set cni0 up")
		m.mustPass()
		if value := run(t, "cat /proc/sys/net/ipv4/conf/cni0/forwarding"); value != "0\n" {
			t.Errorf("the parameter was changed to %q", value)
		}
	})
}

// A device without an address is not left behind.
func TestCleanupOfDeviceWithoutAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, "sysctl -qw net.ipv6.conf.flannel-v6/1.disable_ipv6=1")
		m.restart()
		if removed, err := Cleanup(t.Context(), m.opts, m.state, false); err != nil || !slices.Contains(removed, "device flannel-v6.1") {
			t.Errorf("cleanup (%v) has removed %q", err, removed)
		}
		if left := run(t, "ip -br link show type vxlan"); left != "" {
			t.Errorf("cleanup has left %s", left)
		}
	})
}

// What has no address may be another flanneld's, where one may be on the host.
func TestCleanupLeavesDevicesOfOthers(t *testing.T) {
	const unused = "sysctl -qw net.ipv6.conf.default.disable_ipv6=1; ip link add flannel-v6.%d type vxlan id %[1]d dstport 8480 dev eth0"
	for name, c := range map[string]struct {
		second   bool // it is on the host
		instance string
		vni      int
		gone     bool
	}{
		"alone":                 {vni: 7, gone: true},
		"of a VNI of ours":      {vni: 1, second: true, gone: true},
		"of the second's VNI":   {vni: 2, second: true},
		"of nobody's VNI":       {vni: 7, second: true},
		"with an instance":      {vni: 7, instance: "b0b0b0b"},
		"ours with an instance": {vni: 1, instance: "b0b0b0b", gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				m := newMachine(t)
				m.mustPass()
				if c.second {
					m.second(2).mustPass()
				}
				run(t, "ip link del flannel-v6.1")
				run(t, unused, c.vni)
				m.opts.Instance = c.instance
				removed, err := Cleanup(t.Context(), m.opts, m.state, true)
				if gone := slices.Contains(removed, fmt.Sprintf("device flannel-v6.%d", c.vni)); err != nil || gone != c.gone || !slices.Contains(removed, "device flannel.1") {
					t.Errorf("cleanup (%v) would remove %q", err, removed)
				}
			})
		})
	}
}

// IPv6 packets are forwarded from and to devices with forwarding 0, if "all" has 1:
// flanneld need not set that of its devices.
func TestIPv6ForwardingOfADevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, `sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.forwarding=1
			for i in 1 2; do
				ip netns add end$i; ip link add to$i type veth peer name eth0 netns end$i
				ip addr add fd00:$i::1/64 dev to$i nodad; ip link set to$i up
				ip -n end$i addr add fd00:$i::2/64 dev eth0 nodad; ip -n end$i link set eth0 up
				ip -n end$i route add default via fd00:$i::1
			done
			sysctl -qw net.ipv6.conf.to1.forwarding=0 net.ipv6.conf.to2.forwarding=0`)
		becomes(t, "all", "cat /proc/sys/net/ipv6/conf/all/forwarding", "1")
		becomes(t, "ping", "ip netns exec end1 ping -c 1 -W 1 fd00:2::2 | grep -c '1 received' || true", "1")
	})
}
