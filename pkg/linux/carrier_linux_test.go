package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

func directPaths(peers ...int) (paths []*dataplane.Path) {
	for _, i := range peers {
		paths = append(paths, peersRoute(fmt.Sprintf("10.5.%d.0/24", i), fmt.Sprintf("192.168.100.%d", i)),
			peersRoute(fmt.Sprintf("2001:cafe:42:%d::/64", i), fmt.Sprintf("fd00:100::%d", i)))
	}
	return paths
}

// When the underlay loses its carrier, the kernel deletes the nexthop objects on it with their routes, those of IPv4
// without a notification. The routes are restored at once, and neither peers nor the node have an error meanwhile.
func TestCarrierLost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.devices = m.devices[:1]
		const routes = "{ ip route show proto 70; ip -6 route show proto 70; }"
		// have runs the passes that notifications cause until the kernel has a route to each of these peers,
		// this number of objects, and this number of routes that use one.
		have := func(when string, objects, using int, peers ...int) {
			t.Helper()
			eventually.Nil(t, when, func() error {
				select {
				case <-m.Changes():
					if err := m.pass(); err != nil {
						t.Errorf("%s: %v", when, err)
					}
				default:
				}
				var want strings.Builder
				for _, i := range peers {
					fmt.Fprintf(&want, "10.5.%d.0/24 via 192.168.100.%d\n", i, i)
				}
				for _, i := range peers {
					fmt.Fprintf(&want, "2001:cafe:42:%d::/64 via fd00:100::%d\n", i, i)
				}
				got := run(t, routes)
				if plain := regexp.MustCompile(` nhid \d+| dev eth0 .*`).ReplaceAllString(got, ""); plain != want.String() {
					return fmt.Errorf("the routes are\n%s\nwant\n%s", plain, want.String())
				}
				if strings.Count(got, " nhid ") != using {
					return fmt.Errorf("the routes are\n%s\nwant %d with an object", got, using)
				}
				if out := run(t, "ip nexthop show proto 70"); strings.Count(out, "\n") != objects {
					return fmt.Errorf("the objects are\n%s\nwant %d", out, objects)
				}
				return nil
			})
		}
		becomes := func(command, state string) {
			t.Helper()
			run(t, "%s", command)
			eventually.Nil(t, command, func() error {
				if out := run(t, "ip link show eth0"); !strings.Contains(out, " state "+state+" ") {
					return fmt.Errorf("the device is %s", out)
				}
				return nil
			})
		}
		set := func(peers ...int) {
			m.state.Paths = directPaths(peers...)
			m.mustPass()
		}
		set(2, 3)
		have("at the start", 4, 4, 2, 3)
		for _, lost := range []int{4, 2} { // the watcher compares the second time with what it read the first time
			m.repaired = map[string]int{}
			becomes("ip link set far down", "LOWERLAYERDOWN")
			have("without a carrier", 0, 0, 2, 3)
			if got := m.repaired["routes"]; got != lost {
				t.Errorf("%d routes were written, want %d: others stay", got, lost)
			}
			set(3, 4)
			have("after a change of peers", 0, 0, 3, 4)

			// As when the kernel reports a return of the carrier and its next loss as one change: the watcher is not told
			// of this deletion by our own socket, and the next notification shows the same state.
			key := routeKey{netip.MustParsePrefix("10.5.3.0/24"), 0}
			route := routeEntry{Key: key, Value: newObserver(m).look().routes[key]}
			if err := errors.Join(newRouteStore(m.store).Delete(t.Context(), []routeEntry{route})...); err != nil {
				t.Fatal(err)
			}
			run(t, "ip link set eth0 alias x")
			have("after another notification", 0, 0, 3, 4)

			becomes("ip link set far up", "UP")
			// Routes that were written without a carrier stay without objects. Those of new peers have one again.
			have("with a carrier", 4, 0, 3, 4)
			set(2, 3)
			have("with new peers", 4, 2, 2, 3)
		}
		m.restart()
		m.mustPass()
		have("after a restart", 4, 2, 2, 3)
	})
}

// On an underlay that is down, the kernel refuses objects and routes: that is not the fault of the peers alone.
func TestUnderlayDown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.devices = m.devices[:1]
		m.state.Paths = directPaths(2, 3)
		run(t, "ip link set eth0 down")
		links, err := m.Ensure(t.Context(), m.devices)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Apply(t.Context(), links, m.state); err == nil {
			t.Error("there is no error of the device")
		}
	})
}

// A notification of wireless extensions has only the name of the device, and changes nothing.
func TestPartialNotification(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.mustPass()
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		w := &watcher{d: m.Driver, last: map[int]linkState{}} // beside the one that hears the kernel
		body := func(flags uint32) rtnetlink.Message {
			b := make(rtnetlink.Message, unix.SizeofIfInfomsg)
			binary.NativeEndian.PutUint32(b[4:], uint32(device.Index))
			binary.NativeEndian.PutUint32(b[8:], flags)
			return b.Attr(unix.IFLA_IFNAME, []byte("eth0\x00"))
		}
		full := body(unix.IFF_UP|unix.IFF_RUNNING|unix.IFF_LOWER_UP).Attr(unix.IFLA_OPERSTATE, []byte{6}).
			Attr(unix.IFLA_MTU, []byte{220, 5, 0, 0}).Attr(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
		for _, row := range []struct {
			what  string
			body  rtnetlink.Message
			drift bool
		}{
			{"the first one", full, true},
			{"the same", full, false},
			{"a part", body(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP), false},
			{"a part without a carrier", body(unix.IFF_UP), false},
			{"all after a part", full, false},
		} {
			if drift, err := w.link(true, row.body); err != nil || drift != row.drift {
				t.Errorf("%s: drift %v, error %v, want drift %v", row.what, drift, err, row.drift)
			}
		}
	})
}
