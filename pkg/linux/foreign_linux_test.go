package linux

import (
	"testing"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// A device of other software that has the name of one of ours, and one of a kind that no driver of ours knows, stay.
func TestDevicesOfOthersStay(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		run(t, `ip link add flannel.1 type bridge; ip link set flannel.1 up; ip addr add 10.5.1.0/32 dev flannel.1
			ip link add flannel-wg type bridge; ip link add wg0 type bridge; ip addr add 10.5.1.77/32 dev wg0`)
		theirs := func() string {
			return run(t, "ip -br link show type bridge | awk '{print $1}'; cat /sys/class/net/flannel.1/ifindex")
		}
		before := theirs()
		err := m.pass()
		if err == nil || !logtest.Names(err.Error(), "flannel.1", "bridge") {
			t.Errorf("got %v, want an error that names the device and its type", err)
		}
		m.devices = append(m.devices[:1:1], m.devices[2], dataplane.Device{Name: "flannel-wg", Kind: dataplane.Overlay{}})
		if err := m.pass(); err == nil || !logtest.Names(err.Error(), "flannel-wg", "overlay") {
			t.Errorf("got %v, want an error that names the device and its kind", err)
		}
		if after := theirs(); after != before {
			t.Errorf("there were\n%sand there are\n%s", before, after)
		}
		if got := run(t, "ip -br link show type vxlan | sed 's/[ @].*//'"); got != "flannel-v6.1\n" {
			t.Errorf("the tunnels are %q", got)
		}
	})
}
