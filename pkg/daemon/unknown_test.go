package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

// blindKernel cannot look at its devices, or not make them, as err says.
type blindKernel struct {
	countedKernel
	err       error
	links     dataplane.Links // which devices there are
	bridgeErr error
	applyErr  error
	last      dataplane.State
}

func (k *blindKernel) LeaveSubnets([]netip.Prefix, string) error { return k.bridgeErr }

func (k *blindKernel) Ensure(context.Context, []dataplane.Device) (dataplane.Links, error) {
	return k.links, k.err
}

func (k *blindKernel) Apply(_ context.Context, _ dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	k.last = s
	return nil, k.applyErr
}

// startedNode returns a node with a configuration, a lease and no peers, that is about to make its first pass.
func startedNode(t *testing.T, d *Daemon) (*blindKernel, *loop) {
	t.Helper()
	kernel, n, in := &blindKernel{}, &node{}, newInbox()
	d.Dataplane, d.Firewall, d.Manager = kernel, noFirewall{}, &movingManager{}
	d.Settings = Settings{SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	in.setPeers(subnet.Set{})
	return kernel, d.newLoop(n, in)
}

// once makes a pass.
func (l *loop) once(t *testing.T, again bool) *pass {
	t.Helper()
	p := l.newPass()
	p.again = again
	l.pass(t.Context(), p)
	return p
}

// A pass in which devices or the underlay could not be read deletes nothing; one with any other error does.
func TestKeepsWhatCouldNotBeRead(t *testing.T) {
	d, u, _ := newDaemon(t)
	kernel, l := startedNode(t, d)
	unread := reconcile.Unknown(errors.New("too many open files"))
	for _, step := range []struct {
		name              string
		underlay, devices error
		keep              bool
	}{
		{name: "all is well"},
		{name: "devices cannot be read", devices: unread, keep: true},
		{name: "a device cannot be made", devices: errors.New("file exists")},
		{name: "the underlay cannot be read", underlay: unread, keep: true},
		{name: "no interface can be the underlay", underlay: errors.New("no interface")},
		{name: "all is well again"},
	} {
		u.err, kernel.err = step.underlay, step.devices
		l.once(t, true)
		if kernel.last.Keep != step.keep || len(kernel.last.Networks) != 1 {
			t.Errorf("%s: the dataplane was given %+v, want Keep %t", step.name, kernel.last, step.keep)
		}
		if link := l.node.host.link; link.Name != "eth0" {
			t.Errorf("%s: the underlay is %v", step.name, link)
		}
	}
}

// No pod starts before the dataplane has been given the peers.
func TestSubnetFileWaitsForThePeers(t *testing.T) {
	d, _, _ := newDaemon(t)
	kernel, l := startedNode(t, d)
	l.in.complete = false
	l.once(t, false)
	if _, err := os.Stat(d.Settings.SubnetFile); !errors.Is(err, fs.ErrNotExist) || len(kernel.last.Networks) != 0 {
		t.Errorf("before the peers are known: %v; the dataplane was given %+v", err, kernel.last)
	}
	l.in.setPeers(subnet.Set{})
	l.once(t, false)
	if env, err := subnet.ReadEnv(d.Settings.SubnetFile); err != nil || env.V4Subnet != l.node.lease.V4.Subnet || len(kernel.last.Networks) != 1 {
		t.Errorf("the subnet file has %+v (%v); the dataplane was given %+v", env, err, kernel.last)
	}
}

// No pod starts while a device is missing, or nothing is known of the paths, since its packets would leave by the default
// route. A node whose pods run keeps its file up to date, and so does one whose device is there.
func TestSubnetFileWaitsForTheDevices(t *testing.T) {
	d, _, _ := newDaemon(t)
	kernel, l := startedNode(t, d)
	l.node.backend = tunnelBackend{}
	file, ours := d.Settings.SubnetFile, l.node.lease.V4.Subnet
	remove := func() error { return os.Remove(file) }
	write := func(e subnet.Env) func() error {
		e.V4Network = l.node.config.V4.Prefix
		return func() error { _, err := subnet.WriteEnv(file, e); return err }
	}
	failed, there := errors.New("file exists"), dataplane.Links{tunnelDevice: {Index: 7}}
	for _, step := range []struct {
		name           string
		before         func() error // nil: the file is as the step before left it
		devices, apply error
		links          dataplane.Links
		held           bool // the file has no subnet after the pass, which says so
	}{
		{"a start without the device", nil, failed, nil, nil, true},
		{"a file without a subnet", write(subnet.Env{}), failed, nil, nil, true},
		{"a malformed file", func() error { return os.WriteFile(file, []byte("FLANNEL_SUBNET=none"), 0o644) }, failed, nil, nil, true},
		{"the device is there", nil, nil, nil, there, false},
		{"the device is lost", nil, failed, nil, nil, false},
		{"with another MTU", write(subnet.Env{V4Subnet: ours, MTU: 1}), failed, nil, nil, false},
		{"a former subnet is in the file", write(subnet.Env{V4Subnet: netip.MustParsePrefix("10.5.9.0/24")}), failed, nil, nil, false},
		{"somebody deletes the file, and the device has a wrong setting", remove, failed, nil, there, false},
		{"the paths cannot be read", remove, nil, reconcile.Unknown(errors.New("no memory")), there, true},
		{"a path is refused", nil, nil, errors.New("invalid argument"), there, false},
		{"the paths cannot be read later", nil, nil, reconcile.Unknown(errors.New("no memory")), there, false},
	} {
		if step.before != nil {
			if err := step.before(); err != nil {
				t.Fatal(err)
			}
		}
		kernel.err, kernel.applyErr, kernel.links = step.devices, step.apply, step.links
		p := l.once(t, false)
		env, err := subnet.ReadEnv(file)
		if written := err == nil && env.V4Subnet == ours && env.MTU == l.node.backend.MTU(); written == step.held || env.V4Subnet.IsValid() == step.held {
			t.Errorf("%s: the subnet file has %+v (%v); held back: %t", step.name, env, err, step.held)
		}
		if p.failed.has("subnet-file") != step.held {
			t.Errorf("%s: failed are %v", step.name, p.failed)
		}
	}
}

// Pods of a former subnet on the pods' bridge are no fault of the devices, through which the peers are still reached.
func TestBridgeIsAPartOfItsOwn(t *testing.T) {
	d, _, _ := newDaemon(t)
	kernel, l := startedNode(t, d)
	l.once(t, false) // asks for the lease to be published
	l.in.published = l.in.desired
	peer := leaseAt(2, "one")
	peer.V4.Subnet = netip.MustParsePrefix("10.5.2.0/24")
	l.in.setPeers(subnet.Set{Leases: []*subnet.Lease{peer}})
	kernel.bridgeErr = &dataplane.FormerSubnetError{Bridge: "cni0"}
	p := l.once(t, false)
	l.report(p)
	if !slices.Equal(p.failed.parts(), []string{"bridge"}) || d.Board.Now().Ready {
		t.Errorf("failed are %v, ready is %v", p.failed.parts(), d.Board.Now().Ready)
	}
	r := d.view.now()
	if len(r.Peers) != 1 || r.Peers[0].State != status.UpToDate {
		t.Errorf("the peers are %+v", r.Peers)
	}
}

// A node that others cannot know is not ready, and keeps its network.
func TestMissingNodeIsNotReady(t *testing.T) {
	d, _, log := newDaemon(t)
	kernel, l := startedNode(t, d)
	l.once(t, false) // asks for the lease to be published
	l.in.published = l.in.desired
	for _, missing := range []error{nil, caused{errors.New("Node worker was deleted"), "no-node"}, nil} {
		l.in.setPeers(subnet.Set{OwnMissing: missing})
		p := l.once(t, false)
		l.report(p)
		if slices.Contains(p.failed.parts(), partCluster) != (missing != nil) || d.Board.Now().Ready == (missing != nil) || p.retry() != nil {
			t.Errorf("missing: %v, but ready is %v and failed are %v", missing, d.Board.Now().Ready, p.failed.parts())
		}
		if wait := time.Until(p.due); !p.due.IsZero() != (missing != nil) || wait > repeatLog {
			t.Errorf("missing: %v, but it is logged again after %v", missing, wait)
		}
		if kernel.last.Keep || len(kernel.last.Networks) != 1 {
			t.Errorf("missing: %v: the dataplane was given %+v", missing, kernel.last)
		}
	}
	if log.Count("cause=no-node") != 1 {
		t.Errorf("the log does not have the cause once:\n%s", log)
	}
}

// askedManager remembers what it was asked for.
type askedManager struct {
	movingManager
	want []subnet.Lease
}

func (m *askedManager) Acquire(ctx context.Context, c subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	m.want = append(m.want, want)
	return m.movingManager.Acquire(ctx, c, want)
}

// A subnet file that cannot be read is waited for: without it the node might take another subnet, and its pods be cut off.
func TestJoinWaitsForTheSubnetFile(t *testing.T) {
	had := netip.MustParsePrefix("10.5.7.0/24")
	for _, step := range []struct {
		name    string
		put     func(path string) error
		acquire bool
		subnet  netip.Prefix
	}{
		{"cannot be read", func(path string) error { return os.Mkdir(path, 0o755) }, false, netip.Prefix{}},
		{"says nothing", func(path string) error { return os.WriteFile(path, []byte("FLANNEL_SUBNET=none"), 0o644) }, true, netip.Prefix{}},
		{"is there", func(path string) error {
			_, err := subnet.WriteEnv(path, subnet.Env{V4Network: netip.MustParsePrefix("10.5.0.0/16"), V4Subnet: had})
			return err
		}, true, had},
	} {
		d, _, _ := newDaemon(t)
		m := &askedManager{movingManager: movingManager{subnets: []netip.Prefix{had}}}
		d.Manager, d.Settings.SubnetFile = m, filepath.Join(t.TempDir(), "subnet.env")
		if err := step.put(d.Settings.SubnetFile); err != nil {
			t.Fatal(err)
		}
		in, n := newInbox(), &node{}
		in.setConfig([]byte("one 10.5.0.0/16"))
		if err := d.prepare(t.Context(), n, in); err != nil {
			t.Fatal(err)
		}
		err := d.acquire(t.Context(), in, n)
		if (err == nil) != step.acquire || len(m.want) == 1 != step.acquire {
			t.Errorf("%s: acquire gave %v and asked for %v", step.name, err, m.want)
		} else if step.acquire && m.want[0].V4.Subnet != step.subnet {
			t.Errorf("%s: asked for %s, want %s", step.name, m.want[0].V4.Subnet, step.subnet)
		}
	}
}

// seenKernel counts what parts ask of it.
type seenKernel struct {
	blindKernel
	left, resyncs int
}

func (k *seenKernel) LeaveSubnets([]netip.Prefix, string) error { k.left++; return nil }
func (k *seenKernel) QueueResync()                              { k.resyncs++ }

// What parts need of each other: a failure of the devices is no failure of the lease, too; the bridge is left alone if
// something could not be read; the guard reaches the dataplane, and a resync its tables; the plan finds twins.
func TestPartsInAPass(t *testing.T) {
	d, u, _ := newDaemon(t)
	_, l := startedNode(t, d)
	kernel := &seenKernel{}
	d.Dataplane, d.Settings.Guard = kernel, subnet.GuardEnforce
	twin := leaseAt(2, "one")
	twin.V4 = subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.2.0/24"), PublicIP: u.link.PublicV4}
	l.in.setPeers(subnet.Set{Leases: []*subnet.Lease{twin}})
	for _, step := range []struct {
		name      string
		err       error
		resync    bool
		unwritten bool // the lease
		left      int
		resyncs   int
	}{
		{name: "all is well", unwritten: true, left: 1},
		{name: "devices cannot be made", err: errors.New("file exists"), left: 2},
		{name: "devices cannot be read", err: reconcile.Unknown(errors.New("no descriptors")), left: 2},
		{name: "a resync", resync: true, unwritten: true, left: 3, resyncs: 1},
	} {
		kernel.err = step.err
		p := l.newPass()
		p.resync = step.resync
		l.pass(t.Context(), p)
		l.report(p)
		if p.failed.has("publish") != step.unwritten || kernel.left != step.left || kernel.resyncs != step.resyncs {
			t.Errorf("%s: %v; the bridge was left %d times, resyncs %d", step.name, p.failed, kernel.left, kernel.resyncs)
		}
		if g := kernel.last.Guard; g == nil || !g.Enforce || d.view.now().Conflict == "" {
			t.Errorf("%s: the guard is %+v, the conflict %q", step.name, g, d.view.now().Conflict)
		}
	}
}
