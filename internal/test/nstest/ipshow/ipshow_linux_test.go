package ipshow_test

import (
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/nstest"
	"flannel/internal/test/nstest/ipshow"
)

// setup makes one of each that tests look at.
const setup = `
	ip link add eth0 type veth peer name far; ip link set far up; ip link set eth0 up
	ip addr add 192.168.100.1/24 dev eth0; ip addr add 192.168.100.9/32 dev eth0; ip addr add fd00:100::1/64 dev eth0 nodad
	ip link add flannel.1 type vxlan id 1 dev eth0 local 192.168.100.1 dstport 8472 nolearning
	ip link set flannel.1 address 02:00:00:00:00:01 mtu 1450 up
	ip addr add 10.5.1.0/32 dev flannel.1; ip addr add fd05:0:0:1::/128 dev flannel.1 nodad
	ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink proto 70
	ip route add 10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink mtu 900 metric 7
	ip route add 10.5.4.0/24 dev flannel.1 scope link; ip route add 10.5.5.5 via 192.168.100.5 src 192.168.100.9 proto static
	ip route add default via 192.168.100.254; ip route add blackhole 10.5.6.0/24 proto 70 metric 65536
	ip route add 10.5.8.0/24 nexthop via 192.168.100.8 nexthop via 192.168.100.18 weight 3
	ip nexthop add id 7 via 192.168.100.7 dev eth0 proto 70; ip route add 10.5.7.0/24 nhid 7 proto 70
	ip nexthop add id 8 via 10.5.2.0 dev flannel.1 onlink proto 70; ip nexthop add id 9 via fd00:100::9 dev eth0 proto 70
	ip nexthop add id 10 via 192.168.100.10 dev eth0 proto static
	ip -6 route add fd05:0:0:2::/64 via fd05:0:0:2:: dev flannel.1 onlink proto 70
	ip -6 route add fd05:0:0:3::/64 nhid 9 proto 70; ip -6 route add blackhole fd05:0:0:6::/64 proto 70 metric 65536
	ip -6 route add default via fd00:100::fe dev eth0 metric 5
	ip neigh add 10.5.2.0 lladdr 02:00:00:00:01:02 dev flannel.1 nud permanent
	ip neigh add fd05:0:0:2:: lladdr 02:00:00:00:01:02 dev flannel.1 nud permanent
	ip neigh add 10.5.3.0 lladdr 02:00:00:00:01:03 dev flannel.1 nud stale
	bridge fdb add 02:00:00:00:01:02 dev flannel.1 dst 192.168.100.2 self permanent
	bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.168.100.77 self permanent
	bridge fdb add 02:00:00:00:01:03 dev flannel.1 dst 192.168.100.3 self static`

// The lines are those of the programs.
func TestAsProgramsPrint(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, setup)
		for command, show := range map[string]func() ([]string, error){
			"ip route show; ip -6 route show":                                  ipshow.Routes,
			"ip nexthop show proto 70":                                         func() ([]string, error) { return ipshow.Nexthops(70) },
			"ip neigh show dev flannel.1 nud permanent":                        func() ([]string, error) { return ipshow.Neighbours("flannel.1") },
			"bridge fdb show dev flannel.1":                                    func() ([]string, error) { return ipshow.FDB("flannel.1") },
			"ip -o addr show dev flannel.1 scope global | awk '{print $3,$4}'": func() ([]string, error) { return ipshow.Addresses("flannel.1") },
			"ls /sys/class/net":                                                ipshow.Devices,
			"ip route show root 10.5.0.0/16; ip -6 route show root fd05::/48": func() ([]string, error) {
				all, err := ipshow.Routes()
				return ipshow.Within(all, netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd05::/48")), err
			},
		} {
			got, err := show()
			want := plain(run(t, command))
			slices.Sort(got)
			if diff := cmp.Diff(want, got); err != nil || diff != "" || len(want) == 0 {
				t.Errorf("%s: %v (-program +ipshow)\n%s", command, err, diff)
			}
		}
	})
}

// noise is what the lines lack.
var noise = regexp.MustCompile(`nhid \d+ |id \d+ |pref medium|expires \S+|linkdown`)

// plain returns the sorted lines of an output without noise. A route with several gateways is one line.
func plain(out string) (lines []string) {
	out = strings.ReplaceAll(out, "\n\tnexthop", " nexthop")
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(noise.ReplaceAllString(line, "")), " "))
	}
	slices.Sort(lines)
	return lines
}

func run(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// Device shows every property that tests change.
func TestDevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, setup)
		for _, change := range []string{"mtu 1400", "address 02:00:00:00:00:99", "down", "type vxlan id 1 dev eth0 local 192.168.100.77",
			"type vxlan id 1 dev eth0 ttl 7"} {
			before, err := ipshow.Device("flannel.1")
			if err != nil {
				t.Fatal(err)
			}
			run(t, "ip link set flannel.1 "+change)
			if after, err := ipshow.Device("flannel.1"); err != nil || slices.Equal(after, before) {
				t.Errorf("%s does not show: %v\n%s", change, err, after)
			}
		}
	})
}
