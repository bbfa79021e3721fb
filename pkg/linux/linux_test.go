//go:build linux

package linux

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

const synced = `10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 70 onlink
10.5.3.0/24 via 10.5.3.0 dev flannel.1 proto 70 onlink
10.5.4.0/24 via 10.5.4.0 dev flannel.1 proto 70 onlink
2001:cafe:42:2::/64 via 2001:cafe:42:2:: dev flannel-v6.1 proto 70 metric 1024 onlink
2001:cafe:42:3::/64 via 2001:cafe:42:3:: dev flannel-v6.1 proto 70 metric 1024 onlink
2001:cafe:42:4::/64 via 2001:cafe:42:4:: dev flannel-v6.1 proto 70 metric 1024 onlink
flannel-v6.1 fdb 02:00:00:00:01:02 dst fd00:100::2 self permanent
flannel-v6.1 fdb 02:00:00:00:01:03 dst fd00:100::3 self permanent
flannel-v6.1 fdb 02:00:00:00:01:04 dst fd00:100::4 self permanent
flannel-v6.1 inet6 2001:cafe:42:1::/128
flannel-v6.1 neigh 2001:cafe:42:2:: lladdr 02:00:00:00:01:02 PERMANENT
flannel-v6.1 neigh 2001:cafe:42:3:: lladdr 02:00:00:00:01:03 PERMANENT
flannel-v6.1 neigh 2001:cafe:42:4:: lladdr 02:00:00:00:01:04 PERMANENT
flannel-v6.1 up 1 mtu 1430 address 02:00:00:00:00:02
flannel.1 fdb 02:00:00:00:01:02 dst 192.168.100.2 self permanent
flannel.1 fdb 02:00:00:00:01:03 dst 192.168.100.3 self permanent
flannel.1 fdb 02:00:00:00:01:04 dst 192.168.100.4 self permanent
flannel.1 inet 10.5.1.0/32
flannel.1 neigh 10.5.2.0 lladdr 02:00:00:00:01:02 PERMANENT
flannel.1 neigh 10.5.3.0 lladdr 02:00:00:00:01:03 PERMANENT
flannel.1 neigh 10.5.4.0 lladdr 02:00:00:00:01:04 PERMANENT
flannel.1 up 1 mtu 1450 address 02:00:00:00:00:01`

func TestFirstSync(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		if got := kernel(t); got != synced {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, synced)
		}
		if out := run(t, "ip -d link show flannel.1"); !strings.Contains(out, "vxlan id 1 local 192.168.100.1 dev eth0 srcport 0 0 dstport 8472 nolearning") {
			t.Errorf("flannel.1 is %s", out)
		}
		if got := run(t, "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding /proc/sys/net/ipv6/conf/flannel.1/accept_ra"); got != "1\n1\n0\n" {
			t.Errorf("forwarding v4, v6 and accept_ra are %q", got)
		}
		if n := strings.Count(run(t, "ip nexthop show proto 70; ip -6 nexthop show proto 70"), "via"); n < 6 {
			t.Errorf("%d nexthop objects, want 6", n)
		}
		m.mustPass()
		if m.done != (reconcile.Result{}) {
			t.Errorf("a pass with nothing to do did %+v", m.done)
		}
		m.restart()
		m.mustPass()
		if m.done != (reconcile.Result{}) {
			t.Errorf("the first pass after a restart did %+v, want nothing", m.done)
		}
	})
}

// What happened while we were down is put right by the first pass, by its differences alone.
func TestRestart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.state.Paths = append(m.state.Paths, peerPaths(5)...)
		changed := peerPaths(4)
		for _, p := range changed {
			p.Encap = dataplane.VTEP{MAC: dataplane.MAC{2, 0, 0, 0, 1, 0x44}}
		}
		m.state.Paths = append(m.state.Paths[:4:4], append(changed, peerPaths(5)...)...)
		m.mustPass()
		m.restart()
		m.state.Paths = nil
		for i := 2; i <= 4; i++ { // 5 is gone, 4 has another MAC
			m.state.Paths = append(m.state.Paths, peerPaths(i)...)
		}
		m.mustPass()
		if got := kernel(t); got != synced {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, synced)
		}
		// Per family: neighbour and FDB entry of 4 set; the old FDB entry of 4, and route, nexthop, neighbour and FDB
		// entry of 5 deleted.
		if want := (reconcile.Result{Set: 4, Deleted: 10}); m.done != want {
			t.Errorf("it took %+v, want %+v", m.done, want)
		}
	})
}

// A flannel's entries are taken over as they are; what it left behind goes; what is nobody's of ours stays.
func TestAdoption(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, `ip link add flannel.1 type vxlan id 1 dev eth0 local 192.168.100.1 dstport 8472 nolearning
			ip link set flannel.1 address 06:11:22:33:44:55 mtu 1450 up; ip addr add 10.5.1.0/32 dev flannel.1
			for i in 2 3 4 9; do
				ip route add 10.5.$i.0/24 via 10.5.$i.0 dev flannel.1 onlink
				ip neigh add 10.5.$i.0 lladdr 02:00:00:00:01:0$i dev flannel.1 nud permanent
				bridge fdb add 02:00:00:00:01:0$i dev flannel.1 dst 192.168.100.$i self permanent
			done
			ip route add 10.5.8.0/24 via 192.168.100.8 dev eth0; ip route add 10.5.9.0/25 via 192.168.100.9`)
		foreign := `ip route add 10.6.0.0/24 via 192.168.100.8 dev eth0; ip route add 10.5.7.0/24 via 192.168.100.7 proto static
			ip route add 10.5.6.0/24 via 192.168.100.6 metric 50; ip route add 172.16.0.0/16 dev flannel.1
			ip route add 10.5.64.0/20 via 192.168.100.254; ip route add 10.5.80.9/32 via 192.168.100.254
			ip nexthop add id 9 via 192.168.100.77 dev eth0; ip neigh add 192.168.100.9 lladdr 02:00:00:00:00:99 dev eth0 nud permanent
			ip link add flannel-br type bridge; ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up`
		run(t, "%s", foreign)
		theirs := func() string {
			return run(t, `ip route show proto static; ip route show 10.6.0.0/24; ip route show 10.5.6.0/24; ip route show 172.16.0.0/16; ip route show 10.5.64.0/20; ip route show 10.5.80.9
				ip nexthop show id 9; ip neigh show dev eth0 nud permanent; ip -br link show type bridge; ip route show proto kernel dev cni0`)
		}
		before := theirs()
		m.devices = m.devices[:2]
		m.state = dataplane.State{Networks: []netip.Prefix{v4Network}, Subnets: ownSubnets[:1], Blackholes: ownSubnets[:1],
			FormerSubnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.128/25")}}
		for i := 2; i <= 4; i++ {
			m.state.Paths = append(m.state.Paths, peerPaths(i)[0])
		}
		m.mustPass()
		// Nexthop objects for 3 peers, the blackhole; and away go 3 routes, 1 neighbour, 1 FDB entry.
		if want := (reconcile.Result{Set: 4, Deleted: 5}); m.done != want {
			t.Errorf("adopting took %+v, want %+v", m.done, want)
		}
		if after := theirs(); after != before {
			t.Errorf("what is not ours was changed from\n%s\nto\n%s", before, after)
		}
		got := run(t, "ip route show root 10.5.0.0/16 dev flannel.1; ip route show type blackhole; cat /sys/class/net/flannel.1/address")
		want := `10.5.2.0/24 via 10.5.2.0 onlink
10.5.3.0/24 via 10.5.3.0 onlink
10.5.4.0/24 via 10.5.4.0 onlink
blackhole 10.5.1.0/24 proto 70 metric 65536
06:11:22:33:44:55
`
		if got = regexp.MustCompile(` +\n`).ReplaceAllString(got, "\n"); got != want {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, want)
		}
		m.state.Blackholes = nil
		m.mustPass()
		if out := run(t, "ip route show type blackhole"); out != "" {
			t.Errorf("the blackhole stays when it is no longer wanted: %s", out)
		}
		run(t, "ip route add 10.5.8.0/24 via 192.168.100.8 dev eth0")
		if _, err := Cleanup(t.Context(), m.opts, m.state, false); err != nil {
			t.Error(err)
		}
		const others = "10.5.64.0/20 via 192.168.100.254 dev eth0 \n10.5.80.9 via 192.168.100.254 dev eth0 \n"
		if out := run(t, "ip route show 10.5.8.0/24; ip route show proto 70; ip route show root 10.5.64.0/19"); out != others {
			t.Errorf("a cleanup leaves the routes\n%s", out)
		}
	})
}

// A flannel's routes to peers whose subnets are not as long as this node's are taken over, too, and what is left goes.
func TestAdoptionOfOtherLengths(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, `ip route add 10.5.12.0/25 via 192.168.100.77; ip route add 10.5.12.128/25 via 192.168.100.3
			ip route add 10.5.14.0/25 via 192.168.100.4; ip route add 10.5.16.0/26 via 192.168.100.4`)
		m.devices = m.devices[:1]
		m.state = dataplane.State{Networks: []netip.Prefix{v4Network}, Subnets: ownSubnets[:1]}
		for _, path := range [][2]string{{"10.5.12.0/25", "192.168.100.2"}, {"10.5.12.128/25", "192.168.100.3"}} {
			m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: netip.MustParsePrefix(path[0]), Via: netip.MustParseAddr(path[1]), Device: "eth0", Encap: dataplane.Direct{}})
		}
		check := func(when, want string) {
			t.Helper()
			m.mustPass()
			if got := run(t, "ip route show root 10.5.0.0/16 | sed 's/nhid [0-9]* //; s/ *$//'"); got != want {
				t.Errorf("%s, the routes are\n%s\nwant\n%s", when, got, want)
			}
		}
		const other = "10.5.16.0/26 via 192.168.100.4 dev eth0\n"
		check("at first", "10.5.12.0/25 via 192.168.100.2 dev eth0 proto 70\n10.5.12.128/25 via 192.168.100.3 dev eth0\n"+other)
		m.state.Paths = nil
		check("after these peers have gone", other)
	})
}

// The underlay's address and interface, the VNI and the kind of network change while we run.
func TestChangesOfConfiguration(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, "ip addr add 192.168.100.111/24 dev eth0")
		tunnel := m.devices[1].Kind.(dataplane.VXLAN)
		tunnel.Local = netip.MustParseAddr("192.168.100.111")
		m.devices[1].Kind = tunnel
		m.mustPass()
		if out := run(t, "ip -d link show flannel.1"); !strings.Contains(out, "local 192.168.100.111") {
			t.Errorf("the tunnel did not follow the underlay: %s", out)
		}
		if got := kernel(t); got != synced || m.done != (reconcile.Result{}) {
			t.Errorf("a new source address changed entries (%+v):\n%s", m.done, got)
		}
		tunnel.VNI = 2
		m.devices[1].Name, m.devices[1].Kind = "flannel.2", tunnel
		var paths []*dataplane.Path
		for _, p := range m.state.Paths {
			q := *p
			q.Device = strings.Replace(q.Device, "flannel.1", "flannel.2", 1)
			paths = append(paths, &q)
		}
		m.state.Paths = paths
		m.mustPass()
		if got := run(t, "ip -br link show type vxlan | sed 's,[ @].*,,'; ip route show proto 70 | grep -c flannel.2; bridge fdb show dev flannel.2 | wc -l"); got != "flannel-v6.1\nflannel.2\n3\n3\n" {
			t.Errorf("after a change of VNI: %s", got)
		}
		// host-gw: routes only, and no device.
		m.devices = m.devices[:1]
		m.state.Paths = nil
		for i := 2; i <= 4; i++ {
			for _, p := range peerPaths(i) {
				m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: p.Dst, Via: p.Via, Device: "eth0", Encap: dataplane.Direct{}})
			}
		}
		m.mustPass()
		got := run(t, "ip -br link show type vxlan; ip route show proto 70; ip -6 route show proto 70; ip nexthop show proto 70 | wc -l")
		if want := "via 192.168.100.3 dev eth0"; !strings.Contains(got, want) || strings.Contains(got, "flannel") || strings.Count(got, "dev eth0") != 6 {
			t.Errorf("after a change to host-gw: %s", got)
		}
	})
}

// Without nexthop objects (kernels before 5.3) the routes are plain ones.
func TestPlainRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.store.none = true
		m.mustPass()
		if got := kernel(t); got != synced {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, synced)
		}
		if out := run(t, "ip nexthop show"); out != "" {
			t.Errorf("nexthop objects: %s", out)
		}
		m.state.Paths = m.state.Paths[2:]
		m.mustPass()
		m.restart()
		m.mustPass()
		if out := run(t, "ip route show proto 70 | wc -l; ip route show proto 70 | grep -c nhid || true"); out != "2\n0\n" {
			t.Errorf("plain routes were not kept as they are: %s", out)
		}
	})
}

// An entry that the kernel refuses blocks no other, and is named.
func TestOneRefusalBlocksNoOther(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		bad := &dataplane.Path{Dst: netip.MustParsePrefix("10.5.66.0/24"), Via: netip.MustParseAddr("172.31.0.1"), Device: "eth0", Encap: dataplane.Direct{}}
		m.state.Paths = append([]*dataplane.Path{bad}, m.state.Paths...)
		err := m.pass()
		if err == nil || !logtest.Names(err.Error(), "10.5.66.0/24", "172.31.0.1") {
			t.Errorf("got %v, want an error that names the route", err)
		}
		if got := kernel(t); got != synced {
			t.Errorf("the kernel holds\n%s\nwant\n%s", got, synced)
		}
	})
}

// A program that changes devices and parameters again and again does not fill the log. All of it is repaired.
func TestManyRepairsAreNotLogged(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		log := &logtest.Log{}
		m.Driver.devices.log, m.sysctls.log = log.Logger(), log.Logger()
		const repairs = 30
		for range repairs {
			run(t, "ip link set flannel.1 address 02:00:00:00:99:98; sysctl -qw net.ipv4.ip_forward=0")
			m.markDirty() // do not wait for the notifications
			m.mustPass()
			if got := run(t, "cat /proc/sys/net/ipv4/ip_forward; ip link show flannel.1"); !strings.HasPrefix(got, "1\n") || !strings.Contains(got, "02:00:00:00:00:01") {
				t.Fatalf("not repaired:\n%s", got)
			}
		}
		for _, what := range []string{"cause=" + causeMACRestored, "sysctl=net/ipv4/ip_forward"} {
			if n := log.Count(what); n == 0 || n >= repairs {
				t.Errorf("%s was logged %d times, for %d repairs", what, n, repairs)
			}
		}
		m.counting.Lock()
		defer m.counting.Unlock()
		if m.repaired["devices"] < repairs || m.repaired["sysctls"] < repairs {
			t.Errorf("counted %v, want %d of each", m.repaired, repairs)
		}
	})
}
