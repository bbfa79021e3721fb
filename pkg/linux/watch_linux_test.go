package linux

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// Closing does not wait for a notification: a restart of the daemon would take as much longer.
func TestCloseIsPrompt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for range 20 {
			d, err := New(dataplane.Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // it waits now, usually; the test passes as well if it does not yet
			closed := make(chan error, 1)
			go func() { closed <- d.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("closing waits for the watcher")
			}
		}
	})
}

// Only tunnels of the kernel with properties of their own are watched, by the kernel's name of the type.
func TestWatchedProperties(t *testing.T) {
	for kind, want := range map[string]string{"vxlan": "data", "ipip": "data", "wireguard": "", "tun": "", "tuntap": "", "bridge": "", "": ""} {
		info := rtnetlink.Message(nil).Attr(unix.IFLA_INFO_KIND, []byte(kind+"\x00")).Attr(unix.IFLA_INFO_DATA, []byte("data"))
		if got := tunnelData(info); got != want {
			t.Errorf("of type %q, the properties are %q, want %q", kind, got, want)
		}
	}
}

// The kernel does not wake the watcher for neighbours of other devices, of which pods and the underlay have many.
func TestOtherNeighboursAreIgnored(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, "for i in 0 1 2; do ip link add d$i type veth peer name e$i; ip link set d$i up; ip link set e$i up; done")
		var ours []int
		for _, name := range []string{"d1", "d2"} {
			device, err := net.InterfaceByName(name)
			if err != nil {
				t.Fatal(err)
			}
			ours = append(ours, device.Index)
		}
		got := make(chan int, 100) // devices of neighbours, and 0 for a route
		listener, err := rtnetlink.Listen(rtnetlink.Notifications{
			Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE}, Filter: append(rtnetlink.WithoutNeighbours(nil), rtnetlink.WithoutSender(1)...),
			Each: func(h rtnetlink.Header, body []byte) error {
				if h.Kind == unix.RTM_NEWROUTE || h.Kind == unix.RTM_DELROUTE {
					got <- 0
					return nil
				}
				n, _, err := parseNeigh(body)
				got <- n.index
				return err
			},
			Lost: func(err error) { t.Error(err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()      //nolint:errcheck // only read from
		among := slices.Clone(ours) // more than the longest jump of a comparison
		for i := range 300 {
			among = append(among, 1<<20+i)
		}
		var heard []int
		for _, devices := range [][]int{nil, ours, among} {
			if err := listener.SetFilter(append(rtnetlink.WithoutNeighbours(devices), rtnetlink.WithoutSender(1)...)); err != nil {
				t.Fatal(err)
			}
			run(t, `for d in d0 d1 d2; do ip neigh replace 10.9.0.1 lladdr 02:00:00:00:00:01 dev $d; ip neigh del 10.9.0.1 dev $d; done
				ip route add 10.8.0.0/16 dev d0; ip route del 10.8.0.0/16 dev d0`)
			for routes := 0; routes < 2; {
				index := -1
				select {
				case index = <-got:
				case <-time.After(time.Minute):
					t.Fatalf("with %d devices, notifications of routes are missing", len(devices))
				}
				if index == 0 {
					routes++
				} else if slices.Contains(heard[max(0, len(heard)-1):], index) {
					continue // a change may be several notifications
				}
				heard = append(heard, index)
			}
		}
		if want := []int{0, 0, ours[0], ours[1], 0, 0, ours[0], ours[1], 0, 0}; !slices.Equal(heard, want) {
			t.Errorf("notifications of the devices %v, want %v", heard, want)
		}
	})
}

// When the kernel takes no filter, notifications of new devices arrive nevertheless.
func TestNoFilter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		log := &logtest.Log{}
		d, err := New(dataplane.Options{Log: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close() //nolint:errcheck // of no interest
		w := &watcher{d: d}
		none, err := w.filter(nil)
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan struct{}, 100)
		w.listener, err = rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_NEIGH}, Filter: none,
			Each: func(rtnetlink.Header, []byte) error { heard <- struct{}{}; return nil }, Lost: func(err error) { t.Error(err) }})
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()                 //nolint:errcheck // only read from
		w.setDevices(make([]int, 5000)) // more instructions than the kernel takes
		if log.Count("cause="+causeNoFilter) != 1 {
			t.Errorf("not logged: %v", log)
		}
		run(t, "ip link add d0 type veth peer name e0; ip link set d0 up; ip neigh add 10.9.0.1 lladdr 02:00:00:00:00:01 dev d0 nud permanent")
		select {
		case <-heard:
		case <-time.After(time.Minute):
			t.Error("a neighbour of a new device is not received")
		}
	})
}

// A new lifetime of an address of the underlay, as of each router advertisement or renewal by DHCP, leads to no list. What
// may concern us does: a new or deleted address, one with other flags, and the first notification of each after the device was
// down, or after notifications were lost.
func TestRepeatedAddresses(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		log := &logtest.Log{}
		d, err := New(dataplane.Options{Log: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		defer d.close() //nolint:errcheck // of no interest
		w := d.watcher
		if err := w.close(); err != nil { // this test calls its methods
			t.Fatal(err)
		}
		const settled = "until ip link show eth0 | grep -q 'state UP'; do sleep .01; done" // then, no notification is to come
		run(t, `ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up; %s
			ip addr add fd00:100::1/64 dev eth0 nodad; until ip addr show dev eth0 | grep fd00 | grep -qv tentative; do sleep .01; done`, settled)
		underlay, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		type message struct {
			header rtnetlink.Header
			body   []byte
		}
		messages := make(chan message, 1000)
		listener, err := rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_ROUTE, Groups: groups,
			Each: func(h rtnetlink.Header, body []byte) error { messages <- message{h, bytes.Clone(body)}; return nil },
			Lost: func(err error) { t.Error(err) }})
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() //nolint:errcheck // only read from
		for _, step := range []struct {
			what, command string
			lists         bool
		}{
			{"before eth0 is the underlay", "ip addr add 192.168.100.1/24 dev eth0 valid_lft 300 preferred_lft 300", false},
			{"device", "ip link set eth0 mtu 1400", true},
			{"first notification", "ip addr change 192.168.100.1/24 dev eth0 valid_lft 310 preferred_lft 310", true},
			{"lifetime", "ip addr change 192.168.100.1/24 dev eth0 valid_lft 320 preferred_lft 320", false},
			{"lifetime again", "ip addr change 192.168.100.1/24 dev eth0 valid_lft 330 preferred_lft 330", false},
			{"deprecated", "ip addr change 192.168.100.1/24 dev eth0 valid_lft 320 preferred_lft 0", true},
			{"first notification of IPv6", "ip addr change fd00:100::1/64 dev eth0 nodad valid_lft 300 preferred_lft 300", true},
			{"lifetime of IPv6", "ip addr change fd00:100::1/64 dev eth0 nodad valid_lft 310 preferred_lft 310", false},
			{"never ends", "ip addr change fd00:100::1/64 dev eth0 nodad", true},
			{"never ends, again", "ip addr change fd00:100::1/64 dev eth0 nodad", false},
			{"another address", "ip addr add 192.168.100.9/24 dev eth0", true},
			{"same address for another network", "ip addr add 192.168.100.9/28 dev eth0", true},
			{"same address for a peer", "ip addr add 192.168.100.9 peer 192.168.200.9 dev eth0", true},
			{"deleted", "ip addr del 192.168.100.9/24 dev eth0", true},
			{"added again", "ip addr add 192.168.100.9/24 dev eth0", true},
			{"down and up", "ip link set eth0 down; ip link set eth0 up; " + settled, true},
			{"first notification since", "ip addr change 192.168.100.9/24 dev eth0", true},
			{"not the first one since", "ip addr change 192.168.100.9/24 dev eth0", false},
			{"lost notifications", "", true},
			{"first notification since", "ip addr change 192.168.100.9/24 dev eth0", true},
			{"not the first one since", "ip addr change 192.168.100.9/24 dev eth0", false},
			{"lost notifications again", "", true},
		} {
			d.dirty.Store(false)
			if step.command == "" {
				w.lost(fmt.Errorf("receive: %w", unix.ENOBUFS))
			}
			run(t, "%s; ip addr add 10.99.0.1/32 dev lo; ip addr del 10.99.0.1/32 dev lo", cmp.Or(step.command, "true"))
			for last := false; !last; {
				select {
				case m := <-messages:
					if err := w.handle(m.header, m.body); err != nil {
						t.Fatal(err)
					}
					last = m.header.Kind == unix.RTM_DELADDR && slices.Equal(rtnetlink.Attr(m.body[unix.SizeofIfAddrmsg:], unix.IFA_LOCAL), []byte{10, 99, 0, 1})
				case <-time.After(time.Minute):
					t.Fatalf("%s: notifications are missing", step.what)
				}
			}
			if lists := d.dirty.Load(); lists != step.lists {
				t.Errorf("%s: devices and tables are listed again: %t", step.what, lists)
			}
			d.scope.Store(&scope{links: map[int]bool{underlay.Index: true}})
		}
		if n := log.Count("cause=" + causeNotificationsLost); n != 1 {
			t.Errorf("lost notifications were logged %d times, want once:\n%s", n, log.String())
		}
	})
}
