package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"flannel/internal/test/nstest/ipshow"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// run runs a shell command in the test's namespaces and returns what it printed.
func run(t *testing.T, format string, args ...any) string {
	t.Helper()
	command := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-ec", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

var (
	v4Network = netip.MustParsePrefix("10.5.0.0/16")
	v6Network = netip.MustParsePrefix("2001:cafe:42::/56")

	ownSubnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("2001:cafe:42:1::/64")}
)

// machine is a node's network with our dataplane at work in it, as the daemon would drive it.
type machine struct {
	*Driver
	t        *testing.T
	mu       sync.Mutex
	devices  []dataplane.Device
	state    dataplane.State
	former   []netip.Prefix // subnets of this node
	counting sync.Mutex     // of done and repaired while a pass runs
	done     reconcile.Result
	repaired map[string]int      // by what
	refused  []dataplane.Refused // by the last pass
}

// refusals joins the errors.
func refusals(refused []dataplane.Refused) error {
	var errs []error
	for _, r := range refused {
		errs = append(errs, r.Err)
	}
	return errors.Join(errs...)
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	run(t, `ip link add eth0 type veth peer name far
		ip addr add 192.168.100.1/24 dev eth0; ip addr add fd00:100::1/64 dev eth0 nodad
		ip link set eth0 up; ip link set far up; sysctl -qw net.ipv4.ip_forward=0`)
	m := &machine{t: t, repaired: map[string]int{}}
	m.restart()
	m.devices = []dataplane.Device{
		{Name: "eth0", Kind: dataplane.Existing{}},
		{Name: "flannel.1", MAC: dataplane.MAC{2, 0, 0, 0, 0, 1}, Kind: dataplane.VXLAN{VNI: 1, Tunnel: dataplane.Tunnel{MTU: 1450, Parent: "eth0",
			Local: netip.MustParseAddr("192.168.100.1"), Addr: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/32")}}}},
		{Name: "flannel-v6.1", MAC: dataplane.MAC{2, 0, 0, 0, 0, 2}, Kind: dataplane.VXLAN{VNI: 1, Tunnel: dataplane.Tunnel{MTU: 1430, Parent: "eth0",
			Local: netip.MustParseAddr("fd00:100::1"), Addr: []netip.Prefix{netip.MustParsePrefix("2001:cafe:42:1::/128")}}}},
	}
	m.state = dataplane.State{Networks: []netip.Prefix{v4Network, v6Network}, Subnets: ownSubnets}
	for i := 2; i <= 4; i++ {
		m.state.Paths = append(m.state.Paths, peerPaths(i)...)
	}
	return m
}

// restart ends our dataplane and begins anew, as after a kill -9.
func (m *machine) restart() {
	m.t.Helper()
	if m.Driver != nil {
		if err := m.Close(); err != nil {
			m.t.Fatal(err)
		}
	}
	d, err := New(dataplane.Options{Log: slog.New(slog.NewTextHandler(testWriter{m.t}, nil)), Report: func(_ string, _ int, r reconcile.Result) {
		m.counting.Lock()
		defer m.counting.Unlock()
		r.Replaced = 0 // these tests count writes
		m.done = m.done.Plus(r)
	}, Repairs: dataplane.NewRepairs(slog.New(slog.NewTextHandler(testWriter{m.t}, nil)), func(what string, n int) {
		m.counting.Lock()
		defer m.counting.Unlock()
		m.repaired[what] += n
	})})
	if err != nil {
		m.t.Fatal(err)
	}
	m.Driver = d
}

// kindIn returns the kind of this type.
func kindIn[K kind](d *Driver) (found K) {
	for _, k := range d.kinds {
		if k, ok := k.(K); ok {
			return k
		}
	}
	return found
}

func peerPaths(i int) []*dataplane.Path {
	mac := dataplane.MAC{2, 0, 0, 0, 1, byte(i)}
	return []*dataplane.Path{
		{Dst: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", i)), Via: netip.MustParseAddr(fmt.Sprintf("192.168.100.%d", i)), Device: "flannel.1", Encap: dataplane.VTEP{MAC: mac}},
		{Dst: netip.MustParsePrefix(fmt.Sprintf("2001:cafe:42:%d::/64", i)), Via: netip.MustParseAddr(fmt.Sprintf("fd00:100::%d", i)), Device: "flannel-v6.1", Encap: dataplane.VTEP{MAC: mac}},
	}
}

func (m *machine) pass() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = reconcile.Result{}
	links, err := m.Ensure(m.t.Context(), m.devices)
	state := m.state
	state.Keep = reconcile.IsUnknown(err)
	leaveErr := m.LeaveSubnets(m.former, "n7")
	var applyErr error
	m.refused, applyErr = m.Apply(m.t.Context(), links, state)
	return errors.Join(err, leaveErr, applyErr, refusals(m.refused))
}

func (m *machine) mustPass() {
	m.t.Helper()
	if err := m.pass(); err != nil {
		m.t.Fatal(err)
	}
}

// serve runs a pass on each notification of the kernel, until the test ends.
func (m *machine) serve() {
	ctx, cancel := context.WithCancel(m.t.Context())
	var done sync.WaitGroup
	m.t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-m.Changes():
				if err := m.pass(); err != nil {
					m.t.Logf("pass: %v", err)
					time.AfterFunc(20*time.Millisecond, func() { reconcile.Notify(m.changes) })
				}
			}
		}
	})
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// kernel prints all that we put into the kernel, in a form for a reader.
func kernel(t *testing.T) string {
	t.Helper()
	all := slices.DeleteFunc(lines(t)(ipshow.Routes()), func(route string) bool { return strings.Contains(route, " proto kernel") })
	for _, dev := range []string{"flannel.1", "flannel-v6.1"} {
		in, err := net.InterfaceByName(dev)
		if err != nil {
			continue
		}
		for _, neigh := range lines(t)(ipshow.Neighbours(dev)) {
			all = append(all, dev+" neigh "+neigh)
		}
		for _, entry := range lines(t)(ipshow.FDB(dev)) {
			all = append(all, dev+" fdb "+entry)
		}
		for _, addr := range lines(t)(ipshow.Addresses(dev)) {
			all = append(all, dev+" "+addr)
		}
		all = append(all, fmt.Sprintf("%s up %d mtu %d address %s", dev, in.Flags&net.FlagUp, in.MTU, in.HardwareAddr))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// lines returns a function that fails the test if what it is given is an error; none if a device is not there.
func lines(t *testing.T) func([]string, error) []string {
	return func(all []string, err error) []string {
		t.Helper()
		if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
			t.Fatal(err)
		}
		return all
	}
}
