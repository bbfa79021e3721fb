package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/status"
	"flannel/subnet"
)

// plainManager answers with nothing what a store may not have.
type plainManager struct{ subnet.Manager }

func (plainManager) AcceptWithdrawal() int                                      { return 0 }
func (plainManager) Expires() time.Time                                         { return time.Time{} }
func (plainManager) ConfigMissing() error                                       { return nil }
func (plainManager) Redial()                                                    {}
func (plainManager) PublicIPs(context.Context) (none subnet.PublicIPs, _ error) { return none, nil }
func (plainManager) PublicIPsChanged() <-chan struct{}                          { return nil }
func (plainManager) NodeName() string                                           { return "" }
func (plainManager) Report(subnet.Report)                                       {}

// movingManager is a store that gives the node one subnet, and then another.
type movingManager struct {
	plainManager
	subnets   []netip.Prefix // one for each Acquire
	move      chan struct{}  // ends the first Hold
	watching  chan func(subnet.Set)
	published chan subnet.Lease
	acquired  int
}

func (*movingManager) SetJudge(subnet.Judge) {}

func (m *movingManager) WatchConfig(ctx context.Context, changed func([]byte)) error {
	changed([]byte("one 10.5.0.0/16"))
	<-ctx.Done()
	return nil
}

func (m *movingManager) Acquire(context.Context, subnet.Config, subnet.Lease) (subnet.Lease, error) {
	m.acquired++
	return subnet.Lease{V4: subnet.Endpoint{Subnet: m.subnets[m.acquired-1]}}, nil
}

func (m *movingManager) Publish(_ context.Context, l subnet.Lease) error {
	m.published <- l
	return nil
}

func (m *movingManager) Watch(ctx context.Context, changed func(subnet.Set)) error {
	m.watching <- changed
	<-ctx.Done()
	return nil
}

func (m *movingManager) Hold(ctx context.Context) error {
	select {
	case <-m.move:
		return fmt.Errorf("another podCIDR: %w", subnet.ErrMoved)
	case <-ctx.Done():
		return nil
	}
}

// plainKernel answers with nothing what a system may not have.
type plainKernel struct{ dataplane.Dataplane }

func (plainKernel) Changes() <-chan struct{}                         { return nil }
func (plainKernel) LeaveSubnets([]netip.Prefix, string) error        { return nil }
func (plainKernel) AwaitHostAddrs(context.Context) error             { return nil }
func (plainKernel) PodsWithoutEndpoint() []string                    { return nil }
func (plainKernel) Traffic() map[netip.Prefix]dataplane.TunnelReport { return nil }
func (plainKernel) Guarded() *dataplane.GuardReport                  { return nil }
func (plainKernel) Forwarded() *dataplane.Forwarded                  { return nil }

// countedKernel takes everything, and counts what it was given.
type countedKernel struct {
	plainKernel
	applied chan int
}

func (k countedKernel) Ensure(context.Context, []dataplane.Device) (dataplane.Links, error) {
	return dataplane.Links{}, nil
}
func (k countedKernel) Apply(_ context.Context, _ dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	k.applied <- len(s.Paths)
	return nil, nil
}
func (k countedKernel) Found(context.Context, dataplane.Links, dataplane.State) ([]*dataplane.Path, error) {
	return nil, nil
}
func (k countedKernel) QueueResync() {}

func (k countedKernel) Close() error { return nil }

type noFirewall struct{}

func (noFirewall) Apply(context.Context, firewall.Config) (int, error) { return 0, nil }
func (noFirewall) Changes() <-chan struct{}                            { return nil }
func (noFirewall) Check() bool                                         { return true }

// A node whose subnet becomes another one joins again, and touches no route until it knows all peers once more.
func TestJoinsAgain(t *testing.T) {
	d, _, log := newDaemon(t)
	m := &movingManager{subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.2.0/24")},
		move: make(chan struct{}), watching: make(chan func(subnet.Set)), published: make(chan subnet.Lease, 10)}
	kernel := countedKernel{applied: make(chan int, 100)}
	d.Manager, d.Dataplane, d.Firewall = m, kernel, noFirewall{}
	d.Settings = Settings{SubnetFile: t.TempDir() + "/subnet.env", CompareAll: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()

	changed := <-m.watching
	if l := <-m.published; l.V4.Subnet != m.subnets[0] {
		t.Errorf("published %v", &l)
	}
	changed(subnet.Set{})
	<-kernel.applied
	for !d.Board.Now().Ready {
		time.Sleep(time.Millisecond)
	}
	m.move <- struct{}{}
	again := <-m.watching
	for len(kernel.applied) > 0 {
		<-kernel.applied
	}
	if l := <-m.published; l.V4.Subnet != m.subnets[1] {
		t.Errorf("published %v", &l)
	}
	time.Sleep(50 * time.Millisecond)
	if len(kernel.applied) > 0 || d.Board.Now().Ready {
		t.Errorf("applied %d times before the peers were known; ready: %v", len(kernel.applied), d.Board.Now().Ready)
	}
	again(subnet.Set{})
	<-kernel.applied
	for {
		if env, err := subnet.ReadEnv(d.Settings.SubnetFile); err == nil && env.V4Subnet == m.subnets[1] && d.Board.Now().Ready {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil || log.Count("cause="+causeRejoin) != 1 {
		t.Errorf("ended with %v:\n%s", err, log)
	}
}

// emptyStore has no network configuration, and knows that.
type emptyStore struct {
	movingManager
	missing error
}

func (*emptyStore) SetJudge(subnet.Judge) {}

func (s *emptyStore) WatchConfig(ctx context.Context, _ func([]byte)) error {
	<-ctx.Done()
	return nil
}

func (s *emptyStore) ConfigMissing() error { return s.missing }

// TestMissingConfigIsNamed checks that readiness and the log have the store's reason
// for a missing configuration, and the log also that the store does not answer.
func TestMissingConfigIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, log := newDaemon(t)
		missing, away := errors.New("no key /network/config"), "http://192.0.2.1 does not answer"
		d.Manager = &emptyStore{missing: missing}
		d.Board.Add(status.OfStore, func(r *status.Report) { r.Outage = away })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		time.Sleep(2 * repeatLog)
		synctest.Wait()
		if n := len(log.With("cause="+causeNoConfig).Naming("reason", missing.Error(), away)); n != 2 && n != 3 {
			t.Errorf("logged %d times in two minutes:\n%s", n, log)
		}
		if r := d.Board.Now(); !logtest.Names(r.Problem, missing.Error(), away) {
			t.Errorf("not ready: %v", r.Problem)
		}
		cancel()
		<-ended
	})
}

// slowStore has an invalid configuration, then after a moment a valid one, and then is away, so that Acquire blocks.
type slowStore struct {
	movingManager
	first time.Duration // until the invalid one
}

func (s *slowStore) WatchConfig(ctx context.Context, changed func([]byte)) error {
	time.Sleep(s.first)
	changed([]byte("invalid"))
	time.Sleep(time.Millisecond)
	changed([]byte("one 10.5.0.0/16"))
	<-ctx.Done()
	return nil
}

func (s *slowStore) Acquire(ctx context.Context, _ subnet.Config, _ subnet.Lease) (none subnet.Lease, _ error) {
	<-ctx.Done()
	return none, ctx.Err()
}

// unassignedStore has the configuration after a moment, and waits without end for what PublicIPs reads.
type unassignedStore struct {
	movingManager
	first time.Duration // until the configuration
	mu    sync.Mutex
	last  error // reported last
}

func (s *unassignedStore) WatchConfig(ctx context.Context, changed func([]byte)) error {
	time.Sleep(s.first)
	return s.movingManager.WatchConfig(ctx, changed)
}

func (s *unassignedStore) PublicIPs(ctx context.Context) (none subnet.PublicIPs, _ error) {
	<-ctx.Done()
	return none, ctx.Err()
}

func (s *unassignedStore) Report(r subnet.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r.Problem
}

// A missing configuration is no longer reported when it has arrived, even if the node then waits for the store.
func TestConfigurationArrivesAndTheStoreWaits(t *testing.T) {
	for _, first := range []time.Duration{time.Millisecond, 2 * joinGrace} {
		synctest.Test(t, func(t *testing.T) {
			d, _, _ := newDaemon(t)
			s := &unassignedStore{first: first}
			d.Manager = s
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- d.Run(ctx) }()
			for _, c := range []struct {
				after time.Duration
				want  error
			}{{0, errNoConfig}, {first + time.Millisecond, errNoLease}} {
				time.Sleep(c.after)
				synctest.Wait()
				s.mu.Lock()
				if problem := d.Board.Now().Problem; !errors.Is(s.last, c.want) || problem != c.want.Error() {
					t.Errorf("%v after the start, with a configuration after %v: reported %v, and %s", c.after, first, s.last, problem)
				}
				s.mu.Unlock()
			}
			cancel()
			<-ended
		})
	}
}

// Why the node cannot join is logged at once, even if the next attempt gets further and waits for the store. Only a missing
// configuration is given a moment to arrive.
func TestReasonsAreLoggedAtOnce(t *testing.T) {
	for _, c := range []struct {
		first          time.Duration
		none           int // lines about a missing configuration
		withoutAddress bool
	}{{first: 0}, {first: joinGrace / 2}, {first: 2 * joinGrace, none: 1}, {withoutAddress: true}} {
		synctest.Test(t, func(t *testing.T) {
			d, u, log := newDaemon(t)
			d.Manager = &slowStore{first: c.first}
			if c.withoutAddress {
				u.err = caused{errors.New("no interface"), "no-interface"}
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- d.Run(ctx) }()
			time.Sleep(c.first + 2*time.Millisecond)
			synctest.Wait()
			if log.Count("cause="+causeConfigRefused) != 1 || log.Count("cause="+causeNoConfig) != c.none || (log.Count("cause=no-interface") == 1) != c.withoutAddress {
				t.Errorf("with a configuration after %v, the log has\n%s", c.first, log)
			}
			cancel()
			<-ended
		})
	}
}

// restoringKernel is a system that restores the host's addresses, until err is nil.
type restoringKernel struct {
	plainKernel
	err error
}

func (k *restoringKernel) AwaitHostAddrs(context.Context) error { return k.err }

// What the host has in the place of its own address is not published.
func TestAddressInThePlaceOfOurs(t *testing.T) {
	d, u, _ := newDaemon(t)
	kernel := &restoringKernel{err: errors.New("192.168.0.1 is away")}
	d.Dataplane = kernel
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); !errors.Is(err, kernel.err) {
		t.Errorf("at a start: %v", err)
	}
	kernel.err = nil
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	own, lease := u.link.V4, netip.MustParseAddr("192.168.0.150")
	u.link.V4, u.link.PublicV4 = lease, lease
	kernel.err = errors.New("192.168.0.1 is away")
	l := d.newLoop(n, in)
	if err := l.reconfigured(t, true); !errors.Is(err, kernel.err) || n.host.link.V4 != own {
		t.Errorf("later: %v, the address is %s", err, n.host.link.V4)
	}
	kernel.err = nil
	if err := l.reconfigured(t, false); err != nil || n.host.link.V4 != lease {
		t.Errorf("it was not looked at again: %v, the address is %s", err, n.host.link.V4)
	}
}

// flawedStore has no subnet at first, and then one that contains the underlay.
type flawedStore struct {
	movingManager
	full     error
	problems []string // as reported until the node has joined, each once in a row
}

func (s *flawedStore) Report(r subnet.Report) {
	if text := r.Problem.Error(); len(s.problems) == 0 || s.problems[len(s.problems)-1] != text {
		s.problems = append(s.problems, text)
	}
}

func (s *flawedStore) Acquire(ctx context.Context, c subnet.Config, l subnet.Lease) (lease subnet.Lease, _ error) {
	if s.acquired++; s.acquired <= 3 {
		return lease, s.full
	}
	lease.V4.Subnet = netip.MustParsePrefix("192.168.0.0/24")
	if s.acquired > 4 {
		lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	}
	return lease, nil
}

// A try that fails leaves nothing for the next one: neither a lease that did not fit, nor a former network twice. The
// reported reason changes only when it is another one.
func TestRetriesOfJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		s := &flawedStore{full: errors.New("no subnet is free")}
		d.Manager, d.Settings.SubnetFile = s, t.TempDir()+"/subnet.env"
		former := netip.MustParsePrefix("10.9.0.0/16")
		if _, err := subnet.WriteEnv(d.Settings.SubnetFile, subnet.Env{V4Network: former, V4Subnet: netip.MustParsePrefix("10.9.1.0/24")}); err != nil {
			t.Fatal(err)
		}
		in := newInbox()
		in.setConfig([]byte("one 10.5.0.0/16"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := d.join(ctx, in)
		if n == nil || s.acquired != 5 || len(n.former.networks) != 1 || n.former.networks[0] != former {
			t.Fatalf("after %d leases: %+v", s.acquired, n)
		}
		if len(s.problems) != 3 || s.problems[0] != errNoLease.Error() || !logtest.Names(s.problems[1], s.full.Error()) {
			t.Errorf("reported %q", s.problems)
		}
	})
}

// The dataplane learns which subnets this node had, of both families.
func TestDesiredFormerSubnets(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.5.9.0/25"), netip.MustParsePrefix("2001:cafe:42:9::/64")
	n := &node{backend: tunnelBackend{}, former: former{v4: []netip.Prefix{v4}, v6: []netip.Prefix{v6}}}
	if got := n.desired().FormerSubnets; !slices.Equal(got, []netip.Prefix{v4, v6}) {
		t.Errorf("former subnets are %v", got)
	}
}

// Nodes that start at the same time do not go on asking the store at the same time.
func TestNodesJoinApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 10
		took := map[time.Duration]bool{}
		for range nodes {
			d, _, _ := newDaemon(t)
			d.Manager, d.Settings.SubnetFile = &flawedStore{full: errors.New("no subnet is free")}, t.TempDir()+"/subnet.env"
			in := newInbox()
			in.setConfig([]byte("one 10.5.0.0/16"))
			began := time.Now()
			if d.join(t.Context(), in) == nil {
				t.Fatal("a node has not joined")
			}
			took[time.Since(began)] = true
		}
		if len(took) != nodes {
			t.Errorf("some have joined after the same time: %v", took)
		}
	})
}

// A node that joins again adopts the latest configuration as at a start: neither the rollout of a former one nor its mark
// goes on, whether that one was proven or not.
func TestJoiningAgainEndsTheRollout(t *testing.T) {
	for name, state := range map[string]rollout.State{"two": rollout.Settled, negotiates: rollout.Unproven} {
		synctest.Test(t, func(t *testing.T) {
			a := newAdopting(t, 1)
			a.Manager = &movingManager{subnets: []netip.Prefix{netip.MustParsePrefix("10.5.7.0/24")}}
			a.Settings.SubnetFile = t.TempDir() + "/subnet.env"
			a.Echo = func(context.Context, netip.Addr, netip.Addr) error { return nil }
			a.in.setConfig([]byte(name + " 10.5.0.0/16"))
			a.run(time.Second)
			if state == rollout.Settled {
				a.proven(1, name)
			} else { // no bridge has an address
				a.peers(1, "one", fmt.Sprintf(`{"VNI":1,"Offered":%q,"Answers":false}`, rollout.ID(name)))
			}
			a.run(adoptStagger)
			if a.has("adopted", name, state, state != rollout.Settled); markOf(&a.n.lease).ID != rollout.ID(name) {
				t.Fatalf("it publishes %s", a.n.lease.V4.Data)
			}
			a.in.setConfig([]byte("three 10.5.0.0/16"))
			a.run(time.Second)
			a.has("another one is offered", name, rollout.Waiting, true)
			a.in.reset()
			a.n = a.join(t.Context(), a.in)
			a.has("joined again", "three", rollout.Settled, false)
			if m := a.adoption.rollout.Mark(); m != (rollout.Mark{}) {
				t.Errorf("it has %v of %s", m, name)
			}
		})
	}
}

// That the context ends is no error, also while the node waits for a lease.
func TestEndsWhileJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		d.Manager, d.Settings.SubnetFile = &slowStore{}, t.TempDir()+"/subnet.env"
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		synctest.Wait()
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
