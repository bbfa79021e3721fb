package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// drift is a change to a node by somebody else: a shell command with these
// variables. S and VIA are the base address of a peer's subnet and its underlay
// address, MAC is its VTEP; S6, VIA6 and MAC6 are the same for IPv6.
type drift struct{ name, command string }

const nexthopOfPeer = `$(ip nexthop show proto 70 | grep -w "via $GW" | head -1 | cut -d' ' -f2)`

// ip gives up flushing when it finds entries that were restored meanwhile.
var tunnelDrifts = []drift{
	{"route given an MTU", "ip route replace $S/24 via $S dev flannel.1 onlink mtu 900"},
	{"route added", "ip route add 10.5.0.0/24 via 10.5.0.0 dev flannel.1 onlink"},
	{"neighbour deleted", "ip neigh del $S dev flannel.1"},
	{"neighbour changed", "ip neigh replace $S lladdr 02:00:00:00:99:99 dev flannel.1 nud permanent"},
	{"neighbour no longer permanent", "ip neigh replace $S lladdr $MAC dev flannel.1 nud stale"},
	{"neighbour added", "ip neigh add 10.5.0.0 lladdr 02:00:00:00:99:99 dev flannel.1 nud permanent"},
	{"neighbours flushed", "ip neigh flush dev flannel.1 nud permanent || true"},
	{"FDB entry deleted", "bridge fdb del $MAC dev flannel.1"},
	{"FDB entry changed", "bridge fdb replace $MAC dev flannel.1 dst 192.168.100.77 self permanent"},
	{"FDB entry added", "bridge fdb add 02:00:00:00:99:99 dev flannel.1 dst 192.168.100.77 self permanent"},
	{"FDB entry for all", "bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.168.100.77 self permanent"},
	{"device deleted", "ip link del flannel.1"},
	{"device down", "ip link set flannel.1 down"},
	{"device down and up", "ip link set flannel.1 down; ip link set flannel.1 up"},
	{"device renamed", "until printf 'link set flannel.1 down\nlink set flannel.1 name other\n' | ip -batch - 2>/dev/null; do :; done; ip link set other up; sleep .1; ip link del other 2>/dev/null || true"},
	{"device replaced by another's", "ip link del flannel.1; ip link add flannel.1 type vxlan id 1 dev eth0 dstport 4789 2>/dev/null || true"},
	{"device of a former VNI", "ip link add flannel.9 type vxlan id 9 dstport 9999 dev eth0; ip addr add 10.5.1.0/32 dev flannel.9"},
	{"device address deleted", "ip addr flush dev flannel.1 || true"},
	{"device address added", "ip addr add 10.5.0.1/32 dev flannel.1"},
	{"device MTU changed", "ip link set flannel.1 mtu 1400"},
	{"device's outer address changed", "ip link set flannel.1 type vxlan id 1 dev eth0 local 192.168.100.77"},
	{"device MAC changed", "ip link set flannel.1 address 02:00:00:00:99:98"},
}

var tunnelDrifts6 = []drift{
	{"IPv6 route added", "ip route add fd05:0:0:ffff::/64 via fd05:0:0:ffff:: dev flannel-v6.1 onlink"},
	{"IPv6 neighbour deleted", "ip neigh del $S6 dev flannel-v6.1"},
	{"IPv6 neighbour changed", "ip neigh replace $S6 lladdr 02:00:00:00:99:99 dev flannel-v6.1 nud permanent"},
	{"IPv6 FDB entry deleted", "bridge fdb del $MAC6 dev flannel-v6.1"},
	{"IPv6 FDB entry changed", "bridge fdb replace $MAC6 dev flannel-v6.1 dst fd00:100::77 self permanent"},
	{"IPv6 device deleted", "ip link del flannel-v6.1"},
	{"both devices deleted", "ip link del flannel.1; ip link del flannel-v6.1"},
	{"IPv6 device down and up", "ip link set flannel-v6.1 down; ip link set flannel-v6.1 up"},
	{"IPv6 device address deleted", "ip addr flush dev flannel-v6.1 scope global || true"},
	{"IPv6 device MAC changed", "ip link set flannel-v6.1 address 02:00:00:00:99:98"},
}

var routeDrifts = []drift{
	{"route deleted", "ip route del $S/24"},
	{"route via elsewhere", "ip route replace $S/24 via 192.168.100.77 dev eth0"},
	{"route via elsewhere with our protocol", "ip route replace $S/24 via 192.168.100.77 dev eth0 proto 70"},
	{"route made a blackhole", "ip route replace blackhole $S/24"},
	{"another's route before ours", "ip route prepend $S/24 via 192.168.100.77 dev eth0"},
	{"another route with our protocol", "ip route add 10.5.0.0/24 via 192.168.100.77 proto 70"},
	{"nexthop object deleted", "ip nexthop del id " + nexthopOfPeer},
	{"nexthop object replaced", "ip nexthop replace id " + nexthopOfPeer + " via 192.168.100.77 dev eth0 proto 70"},
	{"nexthop object taken over", "ip nexthop replace id " + nexthopOfPeer + " via 192.168.100.77 dev eth0"},
	{"nexthop objects flushed", "ip nexthop flush proto 70"},
	{"nexthop object added", "ip nexthop add id 1174414712 via 192.168.100.77 dev eth0 proto 70"},
	{"underlay down and up", "ip link set eth0 down; sleep .1; " + underlayUp + "ip route add default via 192.168.100.1"},
	{"forwarding switched off", "sysctl -qw net.ipv4.ip_forward=0"},
}

// underlayUp sets the interface up again. When it goes down, the kernel deletes
// its IPv6 addresses, which an administrator or DHCP would add again.
const underlayUp = `ip link set eth0 up; `

var routeDrifts6 = []drift{
	{"IPv6 route deleted", "ip -6 route del $S6/64"},
	{"IPv6 route via elsewhere", "ip -6 route replace $S6/64 via fd00:100::77 dev eth0"},
	{"IPv6 nexthop object deleted", "ip nexthop del id " + strings.Replace(nexthopOfPeer, "$GW", "$GW6", 1)},
	{"IPv6 forwarding switched off", "sysctl -qw net.ipv6.conf.all.forwarding=0"},
	{"all routes deleted", "ip route del $S/24; ip -6 route del $S6/64"},
}

func TestDriftIsMended(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		family  lab.Family
		backend string
		paused  bool
		drifts  [][]drift
	}{
		{"vxlan", lab.V4, "vxlan", false, [][]drift{routeDrifts, tunnelDrifts}},
		{"vxlan dual", lab.Dual, "vxlan", true, [][]drift{routeDrifts, routeDrifts6, tunnelDrifts, tunnelDrifts6}},
		{"host-gw dual", lab.Dual, "host-gw", false, [][]drift{routeDrifts, routeDrifts6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2, Family: c.family}, `{"Type":"`+c.backend+`"}`)
			d := newDrifter(t, l)
			d.paused = c.paused
			for _, list := range c.drifts {
				for _, drift := range list {
					d.apply(t, drift)
				}
			}
			d.print(t)
		})
	}
}

// drifter applies drifts to the first of two nodes while pods of both
// communicate.
type drifter struct {
	node      *lab.Node
	a, b      *lab.Pod
	paused    bool // SIGSTOP flanneld during the drift, to check that it changes the kernel
	vars      string
	want      string
	six       bool
	table     strings.Builder
	slow, sum time.Duration
	count     int
}

func newDrifter(t *testing.T, l *lab.Lab) *drifter {
	d := &drifter{node: l.Nodes[0]}
	d.a, d.b = pair(t, l)
	for key, v := range leases(t, l) {
		if v.PublicIP != l.Nodes[1].IP4.String() {
			continue
		}
		four, six, dual := strings.Cut(key, "&")
		base, _, _ := strings.Cut(four, "-")
		d.vars = fmt.Sprintf("S=%s GW=%s VIA=%s; ", base, base, v.PublicIP)
		if v.BackendData != nil {
			d.vars += "MAC=" + v.BackendData.VtepMAC + "; "
		} else {
			d.vars += "GW=" + v.PublicIP + "; "
		}
		if !dual {
			continue
		}
		d.six = true
		base, _, _ = strings.Cut(six, "-")
		d.vars += fmt.Sprintf("S6=%s GW6=%s VIA6=%s; ", base, base, *v.PublicIPv6)
		if v.BackendV6Data != nil {
			d.vars += "MAC6=" + v.BackendV6Data.VtepMAC + "; "
		} else {
			d.vars += "GW6=" + *v.PublicIPv6 + "; "
		}
	}
	must(t, reach(t.Context(), d.a, d.b))
	hasPeers(t, d.node, 1)
	var err error
	d.want, err = kernel(t.Context(), d.node)
	must(t, err)
	return d
}

// apply applies a drift, and waits until the kernel is as before and the pods
// reach each other.
func (d *drifter) apply(t *testing.T, c drift) {
	t.Helper()
	command := c.command
	if d.six {
		addr := fmt.Sprintf("%sip addr replace %s/64 dev eth0 nodad; ip -6 route replace default via fd00:100::1; ",
			underlayUp, d.node.IP6)
		command = strings.Replace(command, underlayUp, addr, 1)
	}
	if d.paused {
		must(t, d.node.Signal(syscall.SIGSTOP))
	}
	shell(t, d.node.Namespaces, "%s%s", d.vars, command)
	if d.paused && !strings.Contains(command, "eth0 down") { // which does not change entries of tunnels
		if got, err := kernel(t.Context(), d.node); err != nil || got == d.want {
			t.Fatalf("%s: the kernel did not change (%v)", c.name, err)
		}
		must(t, d.node.Signal(syscall.SIGCONT))
	}
	began := time.Now()
	eventually(t, c.name, d.want, func(ctx context.Context) (string, error) { return kernel(ctx, d.node) })
	repaired := time.Since(began)
	if err := reach(t.Context(), d.a, d.b); err != nil {
		t.Fatalf("%s: repaired, but the pods do not reach each other: %v", c.name, err)
	}
	fmt.Fprintf(&d.table, "%s\t%v\t%v\n", c.name, repaired.Round(time.Millisecond),
		time.Since(began).Round(time.Millisecond))
	d.slow, d.sum, d.count = max(d.slow, repaired), d.sum+repaired, d.count+1
}

func (d *drifter) print(t *testing.T) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "drift\trepaired after\tpods reach each other after\n%s", d.table.String())
	must(t, w.Flush())
	t.Logf("%d kinds of drift, repaired after %v on average, %v at most\n%s", d.count,
		(d.sum / time.Duration(d.count)).Round(time.Millisecond), d.slow.Round(time.Millisecond), out.String())
}
