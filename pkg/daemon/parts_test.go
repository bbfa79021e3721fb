package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/subnet"
)

// order records which parts were reconciled, and which of them found a subnet file.
type order struct {
	file   string
	parts  []string
	before []string // those that found the file
}

func (o *order) reached(part string) {
	o.parts = append(o.parts, part)
	if _, err := os.Stat(o.file); !errors.Is(err, fs.ErrNotExist) {
		o.before = append(o.before, part)
	}
}

type orderedKernel struct {
	blindKernel
	*order
}

func (k *orderedKernel) Apply(context.Context, dataplane.Links, dataplane.State) ([]dataplane.Refused, error) {
	k.reached("paths")
	return nil, nil
}

type orderedFirewall struct {
	noFirewall
	*order
}

func (f *orderedFirewall) Apply(context.Context, firewall.Config) (int, error) {
	f.reached("firewall")
	return 0, nil
}

// No peer waits for iptables, and no pod starts before both are there.
func TestSubnetFileIsLast(t *testing.T) {
	d, _, _ := newDaemon(t)
	_, l := startedNode(t, d)
	o := &order{file: d.Settings.SubnetFile}
	d.Dataplane, d.Firewall = &orderedKernel{order: o}, &orderedFirewall{order: o}
	l.once(t, false)
	if !slices.Equal(o.parts, []string{"paths", "firewall"}) || len(o.before) > 0 {
		t.Errorf("the order is %v; the subnet file was there before %v", o.parts, o.before)
	}
	if o.reached("end"); len(o.before) != 1 {
		t.Error("there is no subnet file after the pass")
	}
}

// linkedKernel has devices.
type linkedKernel struct {
	blindKernel
	links dataplane.Links
}

func (k *linkedKernel) Ensure(context.Context, []dataplane.Device) (dataplane.Links, error) {
	return k.links, nil
}

// A pass finds that an older lease has this node's MAC address, and causes another one.
func TestDuplicatesAreFoundByAPass(t *testing.T) {
	d, u, _ := newDaemon(t)
	_, l := startedNode(t, d)
	clone := nodeWithMAC(t, u, "linux", `{}`)
	*l.node = *clone.node
	d.Dataplane = &linkedKernel{links: clone.links}
	older := l.node.lease
	older.Name, older.Since, older.Backend = "older", 4, "vxlan"
	older.V4.Subnet, older.V4.PublicIP = netip.MustParsePrefix("10.5.2.0/24"), netip.MustParseAddr("192.168.0.2")
	l.in.takeConfig()
	l.in.setPeers(subnet.Set{Leases: []*subnet.Lease{&older}})
	if p := l.once(t, false); !l.node.readdressed["flannel.1"] || p.due.IsZero() {
		t.Errorf("readdressed are %v, the next pass is due at %v; failed: %v", l.node.readdressed, p.due, p.failed.err())
	}
}

// probeConn is a socket that counts the probes to an address.
type probeConn struct {
	to   netip.Addr
	sent atomic.Int64
}

func (c *probeConn) Send(_, to netip.Addr, _ int, _ []byte) error {
	if to == c.to {
		c.sent.Add(1)
	}
	return nil
}

func (c *probeConn) Receive() (_ netip.Addr, answer, expired bool, body []byte, ok bool) {
	return netip.Addr{}, false, false, nil, false
}
func (c *probeConn) Await(func() bool) {}
func (c *probeConn) Up(string) bool    { return true }

// The prober gets the peers of a pass.
func TestPeersOfAPassAreProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, log := newDaemon(t)
		_, l := startedNode(t, d)
		peer := leaseAt(2, "one")
		peer.V4.Subnet = netip.MustParsePrefix("10.5.2.0/24")
		conn := &probeConn{to: peer.V4.Subnet.Addr()}
		d.Probes = reach.New(conn, reach.Options{Log: log.Logger(), RTT: func(time.Duration) {}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.Probes.Run(ctx, func([]string) {}) }()
		l.in.setPeers(subnet.Set{Leases: []*subnet.Lease{peer}})
		l.report(l.once(t, false))
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil || conn.sent.Load() == 0 {
			t.Errorf("%d probes in a minute (%v)", conn.sent.Load(), err)
		}
	})
}

// The prober, which looks at each peer, is not told of a pass that has changed nothing.
func TestProberIsToldNews(t *testing.T) {
	d, _, _ := newDaemon(t)
	_, l := startedNode(t, d)
	var told []int // how many peers
	l.parts = append(l.parts, part{report: onNews(func(n reach.Network) { told = append(told, len(n.Peers)) })})
	peers := []*subnet.Lease{leaseAt(2, "one"), leaseAt(3, "one")}
	for _, n := range []int{0, 1, 1, 2, 2, 1} {
		l.in.setPeers(subnet.Set{Leases: peers[:n]})
		l.report(l.once(t, false))
	}
	if want := []int{0, 1, 2, 1}; !slices.Equal(told, want) {
		t.Errorf("told of %v peers, want %v", told, want)
	}
}
