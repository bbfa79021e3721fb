package linux

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// peersRoute is a peer on the link, without a tunnel.
func peersRoute(dst, via string) *dataplane.Path {
	return &dataplane.Path{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr(via), Device: "eth0", Encap: dataplane.Direct{}}
}

// What the kernel refuses for where it leads belongs to the peers that lead there, and to nobody else; it is tried again.
func TestRefusedEntriesBelongToTheirPeers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, "ip addr add fd00:100::77/128 dev eth0 nodad; ip route add unreachable 192.168.100.77 scope link")
		m.state.Paths = append(m.state.Paths, peersRoute("10.5.8.0/24", "192.168.100.8"),
			peersRoute("10.5.9.0/24", "192.168.100.77"), peersRoute("10.5.10.0/24", "192.168.100.77"), // with one gateway, and so one nexthop object
			peersRoute("10.5.11.0/24", "172.30.0.1"), peersRoute("2001:cafe:42:9::/64", "fd00:100::77"))
		for range 2 {
			if m.pass() == nil {
				t.Fatal("nothing is refused")
			}
			if got, want := dsts(m.refused), []string{"10.5.10.0/24", "10.5.11.0/24", "10.5.9.0/24", "2001:cafe:42:9::/64"}; !slices.Equal(got, want) {
				t.Errorf("refused are %v, want %v", got, want)
			}
			if _, err := m.Apply(t.Context(), m.links, m.state); err != nil {
				t.Errorf("an error beside the refusals: %v", err)
			}
			for _, r := range m.refused {
				if !isPathsFault(r.Err) || !strings.Contains(r.Err.Error(), r.Dst.String()) {
					t.Errorf("the reason for %s is %v", r.Dst, r.Err)
				}
			}
		}
		if out := run(t, "ip route show 10.5.8.0/24"); out == "" {
			t.Error("a good peer of the same pass has no route")
		}
		run(t, "ip route del unreachable 192.168.100.77 scope link")
		if m.pass() == nil || !slices.Equal(dsts(m.refused), []string{"10.5.11.0/24", "2001:cafe:42:9::/64"}) {
			t.Errorf("later refused are %v", dsts(m.refused))
		}
		if out := run(t, "ip route show root 10.5.0.0/16"); !strings.Contains(out, "10.5.9.0/24") || !strings.Contains(out, "10.5.10.0/24") {
			t.Errorf("the routes are\n%s", out)
		}
	})
}

// What the node has no room for is the node's own fault.
func TestNoRoomIsNoPeersFault(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, "ip link del flannel.1; ip link add flannel.1 mtu 1450 type vxlan id 1 dev eth0 local 192.168.100.1 dstport 8472 nolearning maxaddress 2")
		err := m.pass()
		if err == nil || len(m.refused) > 0 || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("refused are %v, the error is %v", m.refused, err)
		}
	})
}

// The error of a neighbour for which a kernel before 5.0 has no room names the sysctl, and that of a lack of memory in a
// system call does not.
func TestFullNeighbourTable(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOBUFS: true, unix.ENOSPC: false, reconcile.Unknown(unix.ENOBUFS): false} {
		got := explainFull([]error{nil, err})
		if got[0] != nil || !errors.Is(got[1], err) || strings.Contains(got[1].Error(), "gc_thresh3") != want {
			t.Errorf("%v is explained as %v", err, got)
		}
	}
}

// A device takes the MAC address that it is told to take, and keeps all that leads through it; so does one that is there
// when we start.
func TestReaddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const show = "ip route show dev flannel.1; bridge fdb show dev flannel.1 | sort; ip neigh show dev flannel.1 nud permanent | sort"
		m := newMachine(t)
		m.mustPass()
		before := run(t, show)
		for _, step := range []struct {
			mac       dataplane.MAC
			readdress bool
			want      string
		}{{dataplane.MAC{2, 0, 0, 0, 9, 1}, false, "02:00:00:00:00:01"}, {dataplane.MAC{2, 0, 0, 0, 9, 2}, true, "02:00:00:00:09:02"}, {dataplane.MAC{2, 0, 0, 0, 9, 3}, true, "02:00:00:00:09:03"}} {
			m.devices = slices.Clone(m.devices)
			m.devices[1].MAC, m.devices[1].Readdress = step.mac, step.readdress
			var log logtest.Log
			m.log = log.Logger()
			m.mustPass()
			if changed := log.Count("cause=mac-changed") == 1; changed != step.readdress || log.Count("cause=mac-restored") > 0 {
				t.Errorf("readdressed: %v, the log says changed: %v", step.readdress, changed)
			}
			if out := run(t, "cat /sys/class/net/flannel.1/address"); strings.TrimSpace(out) != step.want {
				t.Errorf("the MAC address is %s, want %s", out, step.want)
			}
			began := time.Now()
			for after := ""; after != before; after = run(t, show) { // the kernel may take entries away, and says so
				if time.Since(began) > time.Minute {
					t.Fatalf("the entries are\n%s\nwere\n%s", after, before)
				}
				m.mustPass()
			}
			m.restart()
		}
	})
}

// A device that this run finds with an option that cannot be changed, and so makes again, keeps the MAC address that the
// peers know, unless it is to get another one.
func TestRecreatedDeviceKeepsMAC(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		run(t, "ip link set flannel.1 address 06:11:22:33:44:55") // as one that flannel has made
		for _, readdress := range []bool{false, true} {
			m.restart()
			m.devices = slices.Clone(m.devices)
			kind := m.devices[1].Kind.(dataplane.VXLAN)
			kind.Learning = !kind.Learning
			m.devices[1].Kind, m.devices[1].Readdress = kind, readdress
			m.mustPass()
			out := run(t, "ip -d link show flannel.1")
			if want := map[bool]string{false: "06:11:22:33:44:55", true: "02:00:00:00:00:01"}[readdress]; !strings.Contains(out, want) || kind.Learning == strings.Contains(out, "nolearning") {
				t.Errorf("readdressed: %t, the device is %s, want %s", readdress, out, want)
			}
		}
	})
}

// The log tells an address that somebody else has set from one that the node gets, also after a pass with another error.
func TestRestoredMACAfterAnotherError(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		m.devices[2].Kind = dataplane.VXLAN{VNI: 1, Tunnel: dataplane.Tunnel{Parent: "none"}}
		if m.pass() == nil {
			t.Fatal("a device can be made without its underlay")
		}
		var log logtest.Log
		m.log = log.Logger()
		run(t, "ip link set flannel.1 address 02:00:00:00:09:09")
		m.QueueResync()
		if m.pass() == nil || log.Count("cause=mac-restored", "device=flannel.1") != 1 || log.Count("cause=mac-changed") != 0 {
			t.Errorf("the log is\n%s", &log)
		}
		m.devices = slices.Clone(m.devices)
		m.devices[1].MAC, m.devices[1].Readdress = dataplane.MAC{2, 0, 0, 0, 9, 1}, true
		if m.pass() == nil || log.Count("cause=mac-changed", "device=flannel.1") != 1 {
			t.Errorf("the log is\n%s", &log)
		}
	})
}

// dsts are the destinations of refused paths, in order.
func dsts(refused []dataplane.Refused) (all []string) {
	for _, r := range refused {
		all = append(all, r.Dst.String())
	}
	slices.Sort(all)
	return all
}

// A kind of device that the kernel has no module for is named.
func TestNoModule(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		missing := (*noModuleError)(nil)
		err := m.addDevice(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "x"}, LinkType: "nosuchkind"})
		if !errors.As(err, &missing) || missing.Module != "nosuchkind" || !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%v", err)
		}
	})
}

// What ipsec needs of the kernel is named, too. The errors are those of kernels without
// these modules, where a kernel that has them does not return them by itself.
func TestNoModuleForIPsec(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		faults := nstest.NewFaults(t)
		s := &xfrmStore{scope: &scopePointer{}}
		defer s.close()
		for _, module := range []string{"xfrm_user", "esp4"} {
			faults.Fail(1, unix.EPROTONOSUPPORT) // socket; with a socket, the first request
			err := s.require()
			missing, ok := errors.AsType[*noModuleError](err)
			if !ok || missing.Module != module || missing.Cause() != "no-kernel-module" || !strings.Contains(err.Error(), "modprobe "+module) {
				t.Errorf("%s: %v", module, err)
			}
			faults.Fail(0, 0)
			if err := s.open(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Where the kernel refuses XFRM altogether, no policy can drop packets that are not encrypted: then ipsec has no link, and
// no pod starts. Without ESP alone it has one.
func TestNoLinkWithoutXFRM(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		k := kindIn[*ipsec](m.Driver)
		found, err := m.find("eth0")
		if err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		for _, step := range []struct {
			name   string
			opened bool
			errno  unix.Errno
			linked bool
		}{
			{"no xfrm_user", false, unix.EPROTONOSUPPORT, false},
			{"a program of 32 bits", true, unix.EOPNOTSUPP, false},
			{"no esp4", true, unix.EPROTONOSUPPORT, true},
		} {
			if step.opened {
				if err := k.xfrm.open(); err != nil {
					t.Fatal(err)
				}
			}
			faults.Fail(1, step.errno)
			link, err := k.ensure(dataplane.Device{Name: "eth0", Kind: dataplane.IPsec{}}, found)
			faults.Fail(0, 0)
			if err == nil || link != (dataplane.Link{}) != step.linked {
				t.Errorf("%s: link %+v, error %v", step.name, link, err)
			}
		}
	})
}

// A kernel of 64 bits without XFRM_USER_COMPAT refuses XFRM to a program of 32 bits. Then none of our entries is there, and
// the other backends work. (make test-systems runs this package as such a program, where the kernel itself refuses.)
func TestXFRMIsRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := &xfrmStore{scope: &scopePointer{}}
		defer s.close()
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		for name, list := range map[string]func() (int, error){
			"policies": func() (int, error) { all, err := s.List(t.Context()); return len(all), err },
			"states":   func() (int, error) { all, err := s.states(); return len(all), err },
		} {
			faults.Fail(1, unix.EOPNOTSUPP) // the request; the socket is open
			n, err := list()
			if calls := faults.Fail(0, 0); n != 0 || err != nil || calls == 0 {
				t.Errorf("%s: %d entries, %v; want none and no error (%d calls)", name, n, err, calls)
			}
		}
		faults.Fail(1, unix.EOPNOTSUPP)
		if err := s.require(); err == nil || !strings.Contains(err.Error(), "XFRM_USER_COMPAT") {
			t.Errorf("backend ipsec: error %v, want one that names the option of the kernel", err)
		}
		faults.Fail(0, 0)
	})
}

// A /proc without the list of sockets does not keep the other backends from working, whether or not the kernel has XFRM.
func TestNoListOfSockets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, "mount -t proc -o subset=pid proc /proc && test ! -e /proc/net/netlink")
		faults := nstest.NewFaults(t)
		for _, refusal := range []unix.Errno{0, unix.EPROTONOSUPPORT} {
			s := &xfrmStore{scope: &scopePointer{}}
			s.scope.Store(&scope{})
			if refusal != 0 {
				faults.Fail(2, refusal) // the first call opens the list of sockets
			}
			if all, err := s.List(t.Context()); len(all) > 0 || err != nil {
				t.Errorf("socket %v: %v, %v; want none and no error", refusal, all, err)
			}
			s.close()
		}
	})
}
