package probe

import (
	"fmt"
	"maps"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
)

// A kernel parameter that cannot be read may have any value, and is not missing.
func TestUnreadSysctls(t *testing.T) {
	for _, c := range []struct{ unreadable, instead string }{
		{"", ""}, {"net/ipv4/ip_forward", "mkdir"}, {"net/bridge/bridge-nf-call-iptables", "mkdir -p"}, {"net/ipv4/conf/eth0/forwarding", "mkdir"}, {"net/ipv6", "touch"},
	} {
		root := t.TempDir()
		sh(t, `cd `+root+`; mkdir -p net/ipv4/conf/eth0; echo 1 > net/ipv4/ip_forward; echo 0 > net/ipv4/conf/eth0/forwarding; echo 0 > net/ipv4/conf/eth0/disable_xfrm`)
		if c.unreadable != "" {
			sh(t, fmt.Sprintf("cd %s; rm -f %s; %s %[2]s", root, c.unreadable, c.instead))
		}
		values, err := sysctls(root)
		if want := (doctor.Sysctls{"net/ipv4/ip_forward": "1", "net/ipv4/conf/eth0/forwarding": "0"}); c.unreadable == "" && (err != nil || !maps.Equal(values, want)) {
			t.Errorf("%v, %v; want %v", values, err, want)
		}
		if c.unreadable != "" && err == nil {
			t.Errorf("without %s: %v", c.unreadable, values)
		}
	}
}

// A device whose state cannot be read may be managed.
func TestUnreadManagers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer wire; mkdir -p /run/NetworkManager/devices /run/systemd/netif/links`)
		if list, err := managers(); err != nil {
			t.Errorf("%v, %v", list, err)
		}
		for _, dir := range []string{"/run/NetworkManager/devices", "/run/systemd/netif/links"} {
			sh(t, `mkdir `+dir+`/$(cat /sys/class/net/eth0/ifindex)`)
			if list, err := managers(); err == nil {
				t.Errorf("%s: %v", dir, list)
			}
			sh(t, `rmdir `+dir+`/$(cat /sys/class/net/eth0/ifindex)`)
		}
	})
}
