package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

const tunnelDevice = "flannel.1"

// path leads to 10.5.i.0/24.
func path(i int) *dataplane.Path { return pathVia(i, i, i) }

func pathVia(i, via, end int) *dataplane.Path {
	return &dataplane.Path{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24),
		Via: netip.AddrFrom4([4]byte{192, 168, 0, byte(via)}), Device: tunnelDevice, Encap: dataplane.VTEP{MAC: dataplane.MAC{2, 0, 0, 0, 0, byte(end)}}}
}

// path6 leads to fd05:0:0:i::/64.
func path6(i int) *dataplane.Path {
	p := path(i)
	p.Dst = netip.MustParsePrefix(fmt.Sprintf("fd05:0:0:%x::/64", i))
	p.Via = netip.MustParseAddr(fmt.Sprintf("fd00::%x", i))
	p.Device = "flannel-v6.1"
	return p
}

func pathsOf(path func(int) *dataplane.Path, from, to int) (all []*dataplane.Path) {
	for i := from; i <= to; i++ {
		all = append(all, path(i))
	}
	return all
}

func sized(p *dataplane.Path, bits int) *dataplane.Path {
	p.Dst = netip.PrefixFrom(p.Dst.Addr(), bits).Masked()
	return p
}

func join(all ...[]*dataplane.Path) (joined []*dataplane.Path) {
	for _, one := range all {
		joined = append(joined, one...)
	}
	return joined
}

// The rule is that of peerset, for each family; what is in the way of something in force neither stays nor counts.
func TestOrphaned(t *testing.T) {
	own := subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24")}}
	addrs := []netip.Addr{netip.MustParseAddr("192.168.0.1")}
	direct := &dataplane.Path{Dst: path(9).Dst, Via: path(9).Via, Device: "eth0", Encap: dataplane.Direct{}}
	for _, c := range []struct {
		name            string
		found, inForce  []*dataplane.Path
		orphans, leased int
	}{
		{"nothing found", nil, pathsOf(path, 2, 9), 0, 0},
		{"all wanted", pathsOf(path, 2, 9), pathsOf(path, 2, 9), 0, 8},
		{"two peers, both gone", pathsOf(path, 2, 3), nil, 0, 0},
		{"three gone of three", pathsOf(path, 2, 4), nil, 0, 0},
		{"four gone of four", pathsOf(path, 2, 5), nil, 4, 0},
		{"a fifth gone", pathsOf(path, 2, 21), pathsOf(path, 6, 21), 0, 16},
		{"more than a fifth gone", pathsOf(path, 2, 20), pathsOf(path, 6, 20), 4, 15},
		{"new peers do not count", pathsOf(path, 2, 20), pathsOf(path, 6, 200), 4, 15},
		{"two dual-stack peers", join(pathsOf(path, 2, 3), pathsOf(path6, 2, 3)), nil, 0, 0},
		{"four dual-stack peers", join(pathsOf(path, 2, 5), pathsOf(path6, 2, 5)), nil, 8, 0},
		{"one family gone", join(pathsOf(path, 2, 9), pathsOf(path6, 2, 9)), pathsOf(path, 2, 9), 8, 8},
		{"a route past the tunnel", join(pathsOf(path, 2, 5), []*dataplane.Path{direct}), nil, 5, 0},
		{"peers that have other subnets now", pathsOf(path, 2, 9), join([]*dataplane.Path{pathVia(102, 2, 102)}, pathsOf(path, 6, 9)), 0, 4},
		{"a next hop that another has", pathsOf(path, 2, 9), []*dataplane.Path{pathVia(102, 2, 102)}, 7, 0},
		{"a MAC address that another has", pathsOf(path, 2, 9), []*dataplane.Path{pathVia(102, 102, 2)}, 7, 0},
		{"a wider subnet", pathsOf(path, 2, 9), []*dataplane.Path{sized(pathVia(8, 102, 102), 23)}, 8, 0},
		{"one around all", pathsOf(path, 2, 9), []*dataplane.Path{sized(pathVia(0, 102, 102), 17)}, 8, 0},
		{"one around ours", pathsOf(path, 1, 9), []*dataplane.Path{sized(pathVia(0, 102, 102), 17)}, 8, 0},
		{"a narrower subnet", pathsOf(path, 2, 9), []*dataplane.Path{sized(pathVia(8, 102, 102), 25), sized(pathVia(99, 99, 99), 25)}, 7, 0},
		{"our own subnet and address", join([]*dataplane.Path{path(1), pathVia(7, 1, 7)}, pathsOf(path, 8, 11)), nil, 4, 0},
		{"in each other's way", join([]*dataplane.Path{path(2), sized(pathVia(2, 22, 22), 25)}, pathsOf(path, 3, 5), []*dataplane.Path{pathVia(6, 6, 5)}), nil, 4, 0},
	} {
		orphans, leased := findOrphans(c.found, resourcesOf(c.inForce, own, addrs))
		if len(orphans) != c.orphans || leased != c.leased {
			t.Errorf("%s: %d orphans, %d with a lease; want %d, %d", c.name, len(orphans), leased, c.orphans, c.leased)
		}
		for _, p := range orphans {
			for _, w := range c.inForce {
				if w.Dst.Bits() >= p.Dst.Bits() && w.Dst.Overlaps(p.Dst) || w.Via == p.Via || w.Encap == p.Encap && w.Device == p.Device {
					t.Errorf("%s: %v is retained beside %v", c.name, p, w)
				}
			}
		}
	}
}

// leftKernel has paths of an earlier run.
type leftKernel struct {
	countedKernel
	found []*dataplane.Path
	err   error // of Found
	unset error // of Apply
	asked int
	last  dataplane.State
}

func (k *leftKernel) Found(context.Context, dataplane.Links, dataplane.State) ([]*dataplane.Path, error) {
	k.asked++
	return k.found, k.err
}

func (k *leftKernel) Apply(_ context.Context, _ dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	k.last = s
	return nil, k.unset
}

// tunnelBackend has one device.
type tunnelBackend struct{ namedBackend }

func (tunnelBackend) Devices(subnet.Lease) []dataplane.Device {
	return []dataplane.Device{{Name: tunnelDevice, Kind: dataplane.VXLAN{}}}
}

// started is a daemon on a node with paths of an earlier run, and its inbox.
type started struct {
	*loop
	links  dataplane.Links
	kernel *leftKernel
	logs   *logtest.Log
}

func startOver(t testing.TB, retain time.Duration, found ...*dataplane.Path) *started {
	d, _, logs := newDaemon(t)
	kernel := &leftKernel{found: found}
	d.Dataplane, d.Settings.RetainPeers = kernel, retain
	n := &node{backend: tunnelBackend{}}
	n.plan = plan.New(subnet.Config{}, subnet.Lease{}, n.backend)
	return &started{d.newLoop(n, newInbox()), dataplane.Links{tunnelDevice: {Index: 7}}, kernel, logs}
}

// holds passes and checks how many paths the kernel is to hold, how many of them are retained, and whether deleting is
// forbidden.
func (s *started) holds(t *testing.T, when string, inForce []*dataplane.Path, retained int, keep bool) *pass {
	t.Helper()
	p := s.newPass()
	p.known, p.links, p.state = true, s.links, p.desired()
	p.state.Paths, p.state.Since = inForce, inForce
	err := s.only(t, p, partPaths)
	s.report(p)
	r := s.view.now()
	count := 0
	if r.Retained != nil {
		count = r.Retained.Count
	}
	k := s.kernel
	if retained > 0 && k.last.Since != nil {
		t.Errorf("%s: the paths are said to differ from those of the leases in no retained one", when)
	}
	if !errors.Is(err, k.err) || len(k.last.Paths) != len(inForce)+retained || k.last.Keep != keep || count != retained || len(r.Peers) != retained {
		t.Errorf("%s: %v, %d paths, keep %t, status has %d of %d peers retained; want %d and %d retained, keep %t", when, err, len(k.last.Paths),
			k.last.Keep, count, len(r.Peers), len(inForce), retained, keep)
	}
	return p
}

// What is retained at the start goes after its time, or when something in force is in its way.
func TestOrphansEndTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startOver(t, time.Minute, pathsOf(path, 2, 9)...)
		began := time.Now()
		s.holds(t, "at the start", pathsOf(path, 2, 3), 6, false)
		s.holds(t, "once more", pathsOf(path, 2, 3), 6, false)
		r := s.view.now()
		if p := r.Peers[0]; r.Retained.Cause != string(subnet.MissingAtStart) || !r.Retained.Until.Equal(began.Add(time.Minute)) ||
			p.State != status.RetainedPeer || !p.Until.Equal(began.Add(time.Minute)) || p.Subnets[0] != path(4).Dst {
			t.Errorf("retained: %+v, the first %+v", r.Retained, p)
		}
		s.holds(t, "two are back", pathsOf(path, 2, 5), 4, false)
		s.holds(t, "they go again", pathsOf(path, 2, 3), 4, false)
		delete(s.links, tunnelDevice)
		s.holds(t, "without the device", pathsOf(path, 2, 3), 0, false)
		s.links[tunnelDevice] = dataplane.Link{Index: 8}
		time.Sleep(time.Minute - time.Nanosecond)
		p := s.holds(t, "just before their time is over", pathsOf(path, 2, 3), 4, false)
		if time.Sleep(time.Nanosecond); !p.due.Equal(time.Now()) {
			t.Errorf("the next pass is due at %v, want when their time is over", p.due)
		}
		s.holds(t, "over", pathsOf(path, 2, 3), 0, false)
		if s.logs.Count("cause="+string(subnet.MissingAtStart), "retained=6", "present=2") != 1 || s.kernel.asked != 1 {
			t.Errorf("asked %d times; it logs\n%s", s.kernel.asked, s.logs)
		}
	})
}

// An orphan also goes when this node gets its gateway's address, or its subnet.
func TestOrphansMakeWayForThisNode(t *testing.T) {
	s := startOver(t, time.Hour, pathsOf(path, 2, 9)...)
	s.holds(t, "at the start", nil, 8, false)
	s.node.host.addrs = []netip.Addr{path(4).Via}
	s.holds(t, "with the address of one", nil, 7, false)
	s.node.lease.V4.Subnet = path(5).Dst
	s.holds(t, "with the subnet of another", nil, 6, false)
}

func TestOrphansAreAccepted(t *testing.T) {
	s := startOver(t, time.Hour, pathsOf(path, 2, 9)...)
	s.holds(t, "at the start", nil, 8, false)
	if count := s.AcceptWithdrawal(); count != 8 || len(s.in.changed) == 0 {
		t.Errorf("%d are let go, a pass is due: %t", count, len(s.in.changed) > 0)
	}
	s.holds(t, "accepted", nil, 0, false)
	if count := s.AcceptWithdrawal(); count != 0 {
		t.Errorf("%d are let go the second time", count)
	}
}

func TestFewOrphansGo(t *testing.T) {
	s := startOver(t, time.Hour, path(2), path(3))
	s.holds(t, "two peers, and both are gone", nil, 0, false)
	s = startOver(t, 0, pathsOf(path, 2, 9)...)
	if s.holds(t, "switched off", nil, 0, false); s.kernel.asked != 0 {
		t.Errorf("it was looked at what is there %d times", s.kernel.asked)
	}
}

// As long as it is not known what there is, nothing goes.
func TestOrphansAreNotJudgedBlindly(t *testing.T) {
	s := startOver(t, time.Hour, pathsOf(path, 2, 9)...)
	s.kernel.err = reconcile.Unknown(errors.New("no descriptors"))
	s.holds(t, "unread", nil, 0, true)
	s.kernel.err = nil
	delete(s.links, tunnelDevice)
	s.holds(t, "without the device", nil, 0, true)
	s.links[tunnelDevice] = dataplane.Link{Index: 7}
	s.holds(t, "both are there", nil, 8, false)
	s.loop = s.newLoop(s.node, s.in) // it joins again
	s.holds(t, "after joining again", nil, 8, false)
	if s.kernel.asked != 3 {
		t.Errorf("asked %d times", s.kernel.asked)
	}
}

// Found and Apply read the same paths. What both cannot read fails once, with the error of Apply.
func TestUnreadPathsAreOneError(t *testing.T) {
	s := startOver(t, time.Hour, pathsOf(path, 2, 9)...)
	s.kernel.err = caused{reconcile.Unknown(errors.New("no descriptors")), "found"}
	s.kernel.unset = caused{reconcile.Unknown(errors.New("no descriptors")), "applied"}
	p := s.newPass()
	p.known, p.links, p.state = true, s.links, p.desired()
	err := s.only(t, p, partPaths)
	if got := strings.Count(err.Error(), "no descriptors"); got != 1 || causeOf(err, "") != "applied" || !p.state.Keep {
		t.Errorf("the text is there %d times, the cause is %q, Keep is %t: %v", got, causeOf(err, ""), p.state.Keep, err)
	}
}
