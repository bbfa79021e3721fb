package path

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
)

// A rule can send packets another way because of their source: those of nm-cloud-setup from the node's own address, others
// those from pods.
func TestAstray(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh := func(script string) {
			t.Helper()
			if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
		}
		sh(`echo 1 > /proc/sys/net/ipv4/ip_forward
			ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up; ip addr add 192.168.1.5/24 dev eth0
			ip link add flannel.1 type vxlan id 1 dev eth0 local 192.168.1.5 dstport 8472; ip addr add 10.5.1.0/32 dev flannel.1; ip link set flannel.1 up
			ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up
			ip route add default via 192.168.1.1; ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink; ip route add 10.5.3.0/24 via 192.168.1.6
			ip route add default via 192.168.1.1 table 30200; ip route add 192.168.1.0/24 dev eth0 table 30200; ip route add throw 10.5.0.0/16 table 30300
			ip route add unreachable 10.5.0.0/16 table 30400`)
		target := Target{Own: netip.MustParsePrefix("10.5.1.0/24"), Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5")}}
		for _, c := range []struct {
			rule           string
			tunnel, direct string // sources, with what they take instead
		}{
			{"", "", ""},
			{"from 192.168.1.5 table 30200 priority 30200", "192.168.1.5 eth0 30200", "192.168.1.5 eth0 30200"},
			{"from 192.168.1.5 table 30300", "", ""}, // with a throw route, which leads back to the other rules
			// Of packets from pods, the error may as well mean that this node does not forward.
			{"from 10.5.1.0/24 table 30400", "10.5.1.1 invalid, 10.5.1.0 invalid", "10.5.1.1 invalid, 10.5.1.0 invalid"},
			{"from 10.5.1.0/24 throw", "10.5.1.1 invalid, 10.5.1.2 invalid, 10.5.1.0 invalid", "10.5.1.1 invalid, 10.5.1.2 invalid, 10.5.1.0 invalid"},
			{"from 10.5.1.0/24 iif cni0 prohibit", "10.5.1.2 invalid", "10.5.1.2 invalid"},
			{"iif cni0 table 30200", "10.5.1.2 eth0 30200", "10.5.1.2 eth0 30200"},
			{"from 192.168.7.7 table 30200", "", ""},
		} {
			if c.rule != "" {
				sh("ip rule add " + c.rule)
			}
			for subnet, want := range map[string]string{"10.5.2.0": c.tunnel, "10.5.3.0": c.direct} {
				dst := netip.MustParseAddr(subnet)
				r, err := routeTo(dst)
				if err != nil {
					t.Fatal(err)
				}
				found, err := astray(target, r, dst)
				if err != nil {
					t.Fatal(err)
				}
				checkAstray(t, c.rule+" to "+subnet, found, want)
			}
			if c.rule != "" {
				sh("ip rule del " + c.rule)
			}
		}
	})
}

// IPv6 looks up routes of arriving packets whether this node forwards or not, so that an error is that of a route. IPv4 reports
// its reverse path filter by an error.
func TestAstrayPods(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		out, err := exec.Command("sh", "-ec", `ip link add cni0 type bridge; ip link add eth0 type veth peer name far
			ip addr add fd05:0:0:1::1/64 dev cni0 nodad; ip addr add fd00::5/64 dev eth0 nodad; ip addr add 10.5.1.1/24 dev cni0; ip addr add 192.168.1.5/24 dev eth0
			for d in cni0 eth0 far; do ip link set $d up; done; echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter
			ip -6 route add fd05:0:0:2::/64 via fd00::6; ip route add 10.5.2.0/24 via 192.168.1.6
			ip -6 route add unreachable fd05:0:0:2::/64 table 30400; ip -6 rule add iif cni0 table 30400; ip route add 10.5.1.2/32 dev eth0`).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for own, c := range map[string]struct{ dst, want string }{"fd05:0:0:1::/64": {"fd05:0:0:2::", "fd05:0:0:1::2 invalid"}, "10.5.1.0/24": {"10.5.2.0", ""}} {
			dst := netip.MustParseAddr(c.dst)
			r, err := routeTo(dst)
			if err != nil {
				t.Fatal(err)
			}
			found, err := astray(Target{Own: netip.MustParsePrefix(own)}, r, dst)
			if err != nil {
				t.Fatal(err)
			}
			checkAstray(t, own, found, c.want)
		}
	})
}

// Of a packet that arrives, the error of a blackhole is that of the reverse path filter, too, which is excused only if it
// would drop the packet: with 1 if the route back does not lead to the bridge, with 2 if there is none.
func TestAstrayOrFiltered(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add cni0 type bridge; ip link add eth0 type veth peer name far; ip addr add 10.5.1.1/24 dev cni0; ip addr add 192.168.1.5/24 dev eth0
			for d in cni0 eth0 far; do ip link set $d up; done; echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/conf/cni0/rp_filter
			ip route add 10.5.2.0/24 via 192.168.1.6`)
		dst := netip.MustParseAddr("10.5.2.0")
		r, err := routeTo(dst)
		if err != nil {
			t.Fatal(err)
		}
		const blackhole, elsewhere, nowhere = "ip rule add iif cni0 blackhole; ", "ip route add 10.5.1.2/32 dev eth0; ", "ip route add unreachable 10.5.1.2/32; "
		for _, c := range []struct{ filter, script, want string }{
			{"0", blackhole, "10.5.1.2 invalid"}, {"0", elsewhere, ""}, {"0", nowhere, ""},
			{"1", blackhole, "10.5.1.2 invalid"}, {"1", elsewhere, ""}, {"1", nowhere, ""},
			{"2", blackhole, "10.5.1.2 invalid"}, {"2", elsewhere, ""}, {"2", nowhere, ""}, {"2", elsewhere + blackhole, "10.5.1.2 invalid"},
		} {
			sh(t, "echo "+c.filter+" > /proc/sys/net/ipv4/conf/all/rp_filter; "+c.script)
			found, err := astray(Target{Own: netip.MustParsePrefix("10.5.1.0/24")}, r, dst)
			if err != nil {
				t.Errorf("rp_filter %s, %s%v", c.filter, c.script, err)
			}
			checkAstray(t, "rp_filter "+c.filter+", "+c.script, found, c.want)
			sh(t, strings.ReplaceAll(c.script, " add ", " del "))
		}
	})
}

// If the reverse path filter cannot be read, the doctor does not know whether it drops the packet, and reports no route.
func TestFilterIsNotKnown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add cni0 type bridge; ip link add eth0 type veth peer name far; ip addr add 10.5.1.1/24 dev cni0; ip addr add 192.168.1.5/24 dev eth0
			for d in cni0 eth0 far; do ip link set $d up; done; echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter
			ip route add 10.5.2.0/24 via 192.168.1.6; ip route add 10.5.1.2/32 dev eth0`)
		dst, target := netip.MustParseAddr("10.5.2.0"), Target{Own: netip.MustParsePrefix("10.5.1.0/24")}
		r, err := routeTo(dst)
		if err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		if found, err := astray(target, r, dst); err != nil || len(found) > 0 {
			t.Fatalf("found %v, %v", found, err)
		}
		for n, calls := 1, faults.Fail(0, 0); n <= calls; n++ {
			faults.Fail(n, unix.EMFILE)
			found, err := astray(target, r, dst)
			if faults.Fail(0, 0); err == nil && len(found) > 0 {
				t.Errorf("call %d of %d failed: found %v", n, calls, found)
			}
		}
		faults.Fail(1, unix.EMFILE)
		if value, err := reverseFilter("eth0"); !errors.Is(err, unix.EMFILE) {
			t.Errorf("rp_filter is %d, %v", value, err)
		}
		faults.Fail(1, unix.EMFILE)
		if count, err := reversePathFiltered(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("the counter is %d, %v", count, err)
		}
	})
}

// An address that was deleted after it had been listed, alone or with its device, needs no route.
func TestAstrayFromDeletedAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add cni0 type bridge; ip link add eth0 type veth peer name far; ip addr add 10.5.1.1/24 dev cni0
			ip addr add 192.168.1.5/24 dev eth0; ip addr add 192.168.2.5/32 dev eth0
			for d in cni0 eth0 far; do ip link set $d up; done; echo 1 > /proc/sys/net/ipv4/ip_forward
			ip route add 10.5.2.0/24 via 192.168.1.6; ip rule add from 192.168.1.5 prohibit`)
		dst := netip.MustParseAddr("10.5.2.0")
		want, err := routeTo(dst)
		if err != nil {
			t.Fatal(err)
		}
		addrs, err := addresses()
		if err != nil {
			t.Fatal(err)
		}
		sh(t, "ip link del cni0; ip addr del 192.168.2.5/32 dev eth0")
		for src, count := range map[string]int{"10.5.1.1": 0, "192.168.2.5": 0, "192.168.1.5": 1} {
			i := slices.IndexFunc(addrs, func(a netlink.Addr) bool { return a.IP.String() == src })
			if i < 0 {
				t.Fatalf("%s is not listed", src)
			}
			if found, err := astrayFrom(addrs[i], netip.MustParsePrefix("10.5.1.0/24"), want, dst); err != nil || len(found) != count {
				t.Errorf("from %s: found %v, %v; want %d", src, found, err, count)
			}
		}
	})
}

// Without the addresses of this node, the doctor says that it does not know.
func TestAstrayIsNotKnown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if out, err := exec.Command("sh", "-ec", "ip link set lo up; ip addr add 10.5.2.1/24 dev lo").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		dst := netip.MustParseAddr("10.5.2.1")
		r, err := routeTo(dst)
		if err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		faults.Fail(1, unix.EMFILE)
		if found, err := astray(Target{}, r, dst); !errors.Is(err, unix.EMFILE) {
			t.Errorf("found %v, error %v", found, err)
		}
	})
}

func checkAstray(t *testing.T, what string, found []doctor.Astray, want string) {
	t.Helper()
	var wanted []string
	if want != "" {
		wanted = strings.Split(want, ", ")
	}
	if len(found) != len(wanted) {
		t.Errorf("%s: found %v, want %q", what, found, wanted)
		return
	}
	for _, text := range wanted {
		matches := 0
		for _, a := range found {
			// Older kernels have another error than "invalid argument" for packets that arrive.
			if parts := strings.Fields(text); a.Source.String() == parts[0] && (a.Error != "") == (parts[1] == "invalid") &&
				(a.Error != "" || logtest.Names(a.String(), parts...)) {
				matches++
			}
		}
		if matches != 1 {
			t.Errorf("%s: found %v, want %q", what, found, wanted)
		}
	}
}
