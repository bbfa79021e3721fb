package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
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

// leavingKernel reads the subnet file when the bridge is freed of former subnets.
type leavingKernel struct {
	blindKernel
	file  string
	found []subnet.Env
}

func (k *leavingKernel) LeaveSubnets([]netip.Prefix, string) error {
	env, err := subnet.ReadEnv(k.file)
	k.found = append(k.found, env)
	return err
}

// No pod starts in a former subnet, and brings its gateway back, after the bridge is free of it. Until the peers are known,
// the file changes only for that, and not while only the file says what an earlier run has left.
func TestFormerSubnetLeavesTheFileFirst(t *testing.T) {
	prefix := netip.MustParsePrefix
	ours4, ours6, other4, other6 := prefix("10.5.1.0/24"), prefix("fd00:5::/64"), prefix("10.5.9.0/24"), prefix("fd00:5:0:9::/64")
	for name, c := range map[string]struct {
		v4, v6   netip.Prefix // in the file; zero: it has none
		network4 netip.Prefix // in the file; zero: that of the configuration
		off6     bool         // this node has no IPv6
		devices  error
		replaced bool
	}{
		"no file":             {},
		"as leased":           {v4: ours4, v6: ours6},
		"IPv6 is new":         {v4: ours4},
		"another IPv4 subnet": {v4: other4, v6: ours6, replaced: true},
		"another IPv6 subnet": {v4: ours4, v6: other6, replaced: true},
		"both":                {v4: other4, v6: other6, replaced: true},
		"IPv6 is off now":     {v4: ours4, v6: ours6, off6: true},
		"another network":     {v4: prefix("10.6.1.0/24"), v6: ours6, network4: prefix("10.6.0.0/16")},
		"no devices":          {v4: other4, v6: ours6, devices: errors.New("file exists")},
	} {
		t.Run(name, func(t *testing.T) {
			d, _, _ := newDaemon(t)
			_, l := startedNode(t, d)
			kernel := &leavingKernel{file: d.Settings.SubnetFile}
			d.Dataplane, kernel.err, l.in.complete = kernel, c.devices, false
			if !c.off6 {
				l.node.config.V6.Prefix, l.node.lease.V6.Subnet = prefix("fd00:5::/48"), ours6
			}
			before := subnet.Env{V4Network: prefix("10.5.0.0/16"), V4Subnet: c.v4, V6Network: prefix("fd00:5::/48"), V6Subnet: c.v6, MTU: 1}
			if c.network4.IsValid() {
				before.V4Network = c.network4
			}
			if c.v4.IsValid() {
				if _, err := subnet.WriteEnv(kernel.file, before); err != nil {
					t.Fatal(err)
				}
			}
			l.node.former = formerOf(before, l.node.networks(), l.node.lease)
			want := subnet.Env{} // of ReadEnv without a file
			switch {
			case c.replaced:
				want = subnet.Env{V4Network: before.V4Network, V4Subnet: ours4, V6Network: before.V6Network, V6Subnet: ours6,
					FormerV4: l.node.former.v4, FormerV6: l.node.former.v6, MTU: 1500}
			case c.v4.IsValid():
				want = before
				if !c.v6.IsValid() {
					want.V6Network = netip.Prefix{} // not written without a subnet
				}
			}
			p := l.once(t, false)
			if !reflect.DeepEqual(kernel.found, []subnet.Env{want}) {
				t.Errorf("the files are %+v, want %+v; failed are %v", kernel.found, want, p.failed)
			}
		})
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
