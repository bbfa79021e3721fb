package linux

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
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
				m.state.Paths = append(m.state.Paths, &dataplane.Path{Dst: p.Dst, Via: p.Via, Device: "eth0", Encap: dataplane.Direct{}})
			}
			m.mustPass()
			run(t, "ip -6 route add 2001:cafe:42::/56 via fd00:100::77 dev eth0; ip -6 route add 2001:cafe:42:9::/64 via fd00:100::9 dev eth0")
			m.state.Paths = append(tunnel, peerPaths(9)[1])
			heard := hears(t, m.mustPass)
			if strings.Contains(heard, "Deleted 2001:cafe:42:2::/64") {
				t.Errorf("the route was deleted before the new one was there:\n%s", heard)
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

// hears returns the notifications about IPv6 routes that the kernel sends while something is done.
func hears(t *testing.T, do func()) string {
	t.Helper()
	monitor := exec.Command("ip", "-6", "monitor", "route")
	out, err := monitor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := monitor.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = monitor.Process.Kill() // its status says that
		_ = monitor.Wait()
	}()
	// A route of a table that nobody uses marks the beginning and the end. It comes again and again until it is heard:
	// a program that was started may not listen yet.
	begun, ended := make(chan bool), make(chan string)
	go func() {
		var heard strings.Builder
		first := true
		for lines := bufio.NewScanner(out); lines.Scan(); {
			switch line := lines.Text(); {
			case strings.Contains(line, "2001:db8:e::/64"):
				ended <- heard.String()
				return
			case strings.Contains(line, "2001:db8:b::/64") && first:
				first = false
				close(begun)
			default:
				heard.WriteString(line + "\n")
			}
		}
	}()
	const mark = "ip -6 route add 2001:db8:%[1]s::/64 dev eth0 table 777; ip -6 route del 2001:db8:%[1]s::/64 dev eth0 table 777"
	for waits := true; waits; {
		run(t, mark, "b")
		select {
		case <-begun:
			waits = false
		default:
		}
	}
	do()
	run(t, mark, "e")
	return <-ended
}
