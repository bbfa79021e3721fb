package doctor

import (
	"testing"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

func TestWireGuardChecks(t *testing.T) {
	checkAll(t, wireGuarded, []testCase{
		{"FL106", OK, "1420", func(*Snapshot) {}},
		{"FL106", Fail, "flannel-wg 1450 80 1500 eth0", func(s *Snapshot) { s.changeDevice("flannel-wg", func(d *Device) { d.MTU = 1450 }) }},
		{"FL204", OK, "51820", func(*Snapshot) {}},
		{"FL204", Fail, "51820", func(s *Snapshot) { s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 51820 -j DROP") }},
		{"FL204", Skipped, "", func(s *Snapshot) { reportOf(s).Node.Networks[0].Data = []byte(`{"Port":`) }},
		{"FL209", OK, "", func(*Snapshot) {}},
		{"FL209", OK, "", func(s *Snapshot) { reportOf(s).Peers[0].Tunnels[0] = dataplane.TunnelReport{} }}, // nothing was sent
		{"FL209", Undecided, "FL101", func(s *Snapshot) { // the device is missing
			for i := range reportOf(s).Peers {
				reportOf(s).Peers[i].Tunnels = nil
			}
		}},
		{"FL209", Warn, "a", func(s *Snapshot) { reportOf(s).Peers[0].Tunnels[0].Handshake = time.Time{} }},
		{"FL209", Undecided, "b FL101", func(s *Snapshot) { addPeer(s, status.UpToDate) }}, // a part of the peers
		{"FL209", OK, "", func(s *Snapshot) { addPeer(s, status.Rejected) }},
		{"FL209", OK, "", func(s *Snapshot) { reportOf(s).Peers = nil }},
		{"FL209", Warn, "a", func(s *Snapshot) {
			reportOf(s).Peers[0].Tunnels[0].Handshake = time.Time{}
			addPeer(s, status.UpToDate)
		}},
	})
}

func TestIPsecChecks(t *testing.T) {
	checkAll(t, encrypted, []testCase{
		{"FL210", OK, "1", func(*Snapshot) {}},
		{"FL210", Warn, "192.168.0.4", func(s *Snapshot) { reportOf(s).Peers[0].Tunnels[0].Handshake = time.Time{} }},
		{"FL210", Undecided, "charon FL101", func(s *Snapshot) { reportOf(s).Peers[0].Tunnels = nil }}, // charon does not run
		{"FL210", Warn, "b 192.168.0.9", func(s *Snapshot) { addPeer(s, status.UpToDate) }},            // without a connection
		{"FL210", Warn, "b 192.168.0.9", func(s *Snapshot) { addPeer(s, status.Behind) }},
		{"FL210", OK, "1", func(s *Snapshot) { addPeer(s, status.Rejected) }},
		{"FL210", OK, "1", func(s *Snapshot) { addPeer(s, status.Pending) }},
		{"FL210", OK, "", func(s *Snapshot) { reportOf(s).Peers = nil }},
	})
	for inUDP, names := range map[bool]string{false: "ESP", true: "4500"} {
		s := encrypted()
		reportOf(&s).Peers[0].Tunnels[0].Handshake, reportOf(&s).Node.UDPEncap = time.Time{}, inUDP
		if r := find(t, Examine(s), "FL210"); !logtest.Names(r.Fix, names) || inUDP && logtest.Names(r.Fix, "(ESP)") {
			t.Errorf("UDPEncap %t: the fix is %q", inUDP, r.Fix)
		}
	}
}

// The port of the udp backend is known by its device alone, also without a daemon.
func TestFirewallsForUDP(t *testing.T) {
	udp := func() Snapshot {
		s := healthy()
		n := reportOf(&s).Node
		n.Backend, n.Devices[1] = "udp", status.Device{Name: "flannel0", Index: 7, MTU: 1472}
		s.changeDevice("flannel.1", func(d *Device) { *d = Device{Name: "flannel0", Index: 7, Type: "tuntap", MTU: 1472} })
		return s
	}
	checkAll(t, udp, []testCase{
		{"FL106", Fail, "flannel0 1472 28 1480 eth0", func(s *Snapshot) { s.Interfaces.Value.Interfaces[0].MTU = 1480 }},
		{"FL204", OK, "8285", func(*Snapshot) {}},
		{"FL204", Fail, "8285", func(s *Snapshot) { s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 8285 -j DROP") }},
		{"FL204", Fail, "9000", func(s *Snapshot) {
			reportOf(s).Node.Devices[1].Name = "flannel9000"
			s.changeDevice("flannel0", func(d *Device) { d.Name = "flannel9000" })
			s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 9000 -j DROP")
		}},
		{"FL204", Skipped, "", func(s *Snapshot) { reportOf(s).Node.Devices = reportOf(s).Node.Devices[:1] }},
	})
	withoutDaemon := func() Snapshot {
		s := udp()
		s.Daemon = Known(Answer{Problem: "gone"})
		s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 8285 -j DROP")
		return s
	}
	checkAll(t, withoutDaemon, []testCase{
		{"FL204", Fail, "8285", func(*Snapshot) {}},
		{"FL204", Skipped, "", func(s *Snapshot) { s.changeDevice("flannel0", func(d *Device) { d.Name = "flannel-vpn" }) }}, // of another program
	})
}
