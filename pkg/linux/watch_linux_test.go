package linux

import (
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
