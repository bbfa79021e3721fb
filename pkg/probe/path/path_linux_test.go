package path

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
)

// A reverse path filter that cannot be read is a problem only if it decides what the cause is: that of the last device on
// which an answer arrived, if the answer was lost on this node, with IPv4, and nothing that was read rules the filter out.
func TestUnreadFilterIsAProblem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer name off; ip link add flannel.1 type bridge; cd /proc/sys/net/ipv4/conf
			for d in all off; do echo 0 > $d/rp_filter; done; for d in eth0 flannel.1; do echo 1 > $d/rp_filter; done`)
		faults := nstest.NewFaults(t)
		const before = -1 // reading the counter before packets are sent
		for name, c := range map[string]struct {
			change  func(*run)
			arrived []string // devices on which the answer to Inner arrived; "interface 12" was deleted meanwhile
			dropped int      // packets by the filter, in the counter
			failing int      // the call that fails: 1 reads the counter, 2 and 3 rp_filter of one device, 4 and 5 of the next; or before
			problem bool
		}{
			"all are read":                       {nil, []string{"eth0", "flannel.1"}, 1, 0, false},
			"the counter is not":                 {nil, []string{"eth0", "flannel.1"}, 1, 1, true},
			"nor was it before":                  {nil, []string{"eth0", "flannel.1"}, 1, before, true},
			"the only device is not":             {nil, []string{"eth0"}, 1, 3, true},
			"a device before the last":           {nil, []string{"eth0", "flannel.1"}, 1, 3, false},
			"the counter is not, filter off":     {nil, []string{"eth0", "off"}, 1, 1, false},
			"nor was it before, filter off":      {nil, []string{"off"}, 1, before, false},
			"the device is not, nothing dropped": {nil, []string{"eth0"}, 0, 3, false},
			"neither is read":                    {nil, []string{"interface 12"}, 0, 1, true},
			"the first of two reads fails":       {func(r *run) { r.Frame.Arrived = []string{"eth0"} }, []string{"eth0"}, 1, 3, false},
			"the second of two reads fails":      {func(r *run) { r.Frame.Arrived = []string{"eth0"} }, []string{"eth0"}, 1, 5, false},
			"the last device was deleted":        {nil, []string{"eth0", "interface 12"}, 1, 0, true},
			"an earlier device was deleted":      {nil, []string{"interface 12", "eth0"}, 1, 0, false},
			"a device of another test":           {func(r *run) { r.Frame.Arrived = []string{"interface 12"} }, []string{"eth0"}, 1, 0, false},
			"no answer arrived":                  {nil, nil, 1, 1, false},
			"the program has the answer":         {func(r *run) { r.Inner.Result = doctor.Answered }, []string{"eth0"}, 1, 1, false},
			"packets take another way":           {func(r *run) { r.Astray = []doctor.Astray{{Device: "eth1"}} }, []string{"eth0"}, 1, 1, false},
			"the peer does not forward":          {func(r *run) { r.NotForwarding = true }, []string{"eth0"}, 1, 1, false},
			"a Windows node may not answer":      {func(r *run) { r.PublishedMAC = "00:15:5d:01:02:03" }, []string{"eth0"}, 1, 1, false},
			"a Windows node that has to answer":  {func(r *run) { r.PublishedMAC, r.Expected = "00:15:5d:01:02:03", true }, []string{"eth0"}, 1, 1, true},
			"IPv6, which has no such filter":     {func(r *run) { r.addr = netip.MustParseAddr("fd00:10:5::") }, []string{"eth0"}, 1, 1, false},
		} {
			r := run{addr: netip.MustParseAddr("10.5.2.0"), Path: doctor.Path{Kind: "vxlan", Underlay: "eth0",
				Inner: doctor.PathTest{Result: doctor.Silent, Left: []string{"eth0"}, Arrived: c.arrived}}}
			if c.change != nil {
				c.change(&r)
			}
			var unread error
			if c.failing == before {
				unread = unix.EMFILE
			}
			faults.Fail(max(c.failing, 0), unix.EMFILE)
			r.readFilters(-c.dropped, unread)
			faults.Fail(0, 0)
			if (r.Problem != "") != c.problem {
				t.Errorf("%s: the problem is %q", name, r.Problem)
			}
			for _, device := range c.arrived {
				if c.failing == 0 && device != "interface 12" && r.Filters[device] != 1 {
					t.Errorf("%s: rp_filter is %v", name, r.Filters)
				}
			}
		}
	})
}
