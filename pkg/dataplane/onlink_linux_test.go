package dataplane

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"flannel/pkg/nstest"
)

// A peer that was reached without a tunnel is reached through one, without a moment in between: also where the kernel
// thinks that it knows better where the tunnel's gateway is.
func TestFromDirectToTunnel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, plain := range []bool{false, true} {
			m := newMachine(t)
			m.store.none = plain
			tunnel := m.state.Paths
			m.state.Paths = nil
			for _, p := range tunnel {
				m.state.Paths = append(m.state.Paths, &Path{Dst: p.Dst, Via: p.Via, Device: "eth0"})
			}
			m.mustPass()
			run(t, "ip -6 route add 2001:cafe:42::/56 via fd00:100::77 dev eth0; ip -6 route add 2001:cafe:42:9::/64 via fd00:100::9 dev eth0")
			m.state.Paths = append(tunnel, peerPaths(9)[1])
			monitor := exec.Command("ip", "-6", "monitor", "route")
			var heard strings.Builder
			monitor.Stdout = &heard
			if err := monitor.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			m.mustPass()
			time.Sleep(100 * time.Millisecond)
			monitor.Process.Kill()
			monitor.Wait()
			if strings.Contains(heard.String(), "Deleted 2001:cafe:42:2::/64") {
				t.Errorf("the route was deleted before the new one was there:\n%s", heard.String())
			}
			m.mustPass()
			m.state.Paths = tunnel
			m.mustPass()
			run(t, "ip -6 route del 2001:cafe:42::/56 via fd00:100::77 dev eth0")
			if got := kernel(t); got != synced {
				t.Errorf("plain %t: the kernel holds\n%s\nwant\n%s", plain, got, synced)
			}
			m.Close()
			run(t, "ip link del flannel.1; ip link del flannel-v6.1; ip link del eth0")
		}
	})
}
