package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flannel/backend"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/pkg/status/metrics"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// What the loop does to a kernel and to etcd is tested by the end-to-end tests; here is what it decides.

type fixedUnderlay struct {
	link  underlay.Link
	addrs []netip.Addr
	err   error
}

func (f *fixedUnderlay) Choose(_, _ bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error) {
	l := f.link
	if operator.V4.IsValid() {
		l.PublicV4 = operator.V4
	}
	return l, f.addrs, f.err
}
func (f *fixedUnderlay) Changes() <-chan struct{} { return nil }

// negotiates is the name of a backend with which nodes negotiate keys, and no address answers.
const negotiates = "negotiates"

// namedBackend is a backend whose only trait is its name.
type namedBackend struct{ name string }

func (b namedBackend) Devices(subnet.Lease) []dataplane.Device { return nil }
func (b namedBackend) Describe(l subnet.Lease, _ dataplane.Links) (subnet.Lease, error) {
	l.Backend = b.name
	return l, nil
}
func (b namedBackend) Paths(*subnet.Lease) ([]*dataplane.Path, error) { return nil, nil }
func (b namedBackend) MTU() int                                       { return 1500 }
func (b namedBackend) ForWindows() string                             { return "" }
func (b namedBackend) Ends(*subnet.Lease) ([]*dataplane.Path, error)  { return nil, nil }
func (b namedBackend) Derived(*dataplane.Path) bool                   { return false }
func (b namedBackend) Wire() backend.Wire {
	return backend.Wire{Name: b.name, Paths: b.name != "none", Echo: b.name != negotiates, Keys: b.name == negotiates}
}

// parseText understands "<backend> <network>".
func parseText(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	name, network, ok := strings.Cut(strings.Trim(string(raw), "\"\n"), " ") // raw may be a string in JSON
	if !ok {
		return subnet.Config{}, nil, nil, fmt.Errorf("%q has no network", raw)
	}
	config := subnet.Config{Backend: name, V4: subnet.Network{Prefix: netip.MustParsePrefix(network), SubnetLen: 24}}
	return config, func(backend.Node) (backend.Backend, []string, error) {
		if name == "impossible" {
			return nil, nil, errors.New("impossible on this node")
		}
		return namedBackend{name}, nil, nil
	}, nil, nil
}

func newDaemon(t testing.TB) (*Daemon, *fixedUnderlay, *logtest.Log) {
	t.Helper()
	var log logtest.Log
	u := &fixedUnderlay{link: underlay.Link{Name: "eth0", Index: 2, MTU: 1500, V4: netip.MustParseAddr("192.168.0.1"), PublicV4: netip.MustParseAddr("192.168.0.1")}}
	board := &status.Board{}
	return &Daemon{Manager: plainManager{}, Dataplane: plainKernel{}, Underlay: u, Firewall: noFirewall{}, Parse: parseText, Log: log.Logger(), Board: board,
		Metrics: metrics.New(board, "", "", nil), Tally: &reconcile.Tally{}, Notify: func(string) {}}, u, &log
}

// only reconciles the parts with a name, and returns their error.
func (l *loop) only(t *testing.T, p *pass, name string) error {
	t.Helper()
	for _, part := range l.parts {
		if part.name == name && part.reconcile != nil {
			p.failed.add(name, part.reconcile(t.Context(), p))
		}
	}
	return p.failed.err()
}

// reconfigured follows the underlay and the configuration. again means that what is known of the underlay is stale.
func (l *loop) reconfigured(t *testing.T, again bool) error {
	t.Helper()
	p := l.newPass()
	p.again = again
	return l.only(t, p, partConfig)
}

func TestReconfigure(t *testing.T) {
	d, u, log := newDaemon(t)
	in, n := newInbox(), &node{}
	in.setConfig([]byte("one 10.5.0.0/16"))
	if err := d.prepare(t.Context(), n, in); err != nil {
		t.Fatal(err)
	}
	n.lease.V4.Subnet = netip.MustParsePrefix("10.5.1.0/24")
	refused, l := false, d.newLoop(n, in)
	for _, step := range []struct {
		name, config string // no config: the underlay is looked at
		link         func()
		backend      string
		publicIP     string
		fails        bool
		logs         string // what a cause and its values are
	}{
		{name: "another backend", config: "two 10.5.0.0/16", backend: "two"},
		{name: "another network", config: "two 10.6.0.0/16", backend: "two", logs: causeConfigRefused + " 10.5.0.0/16 10.6.0.0/16"},
		{name: "garbage", config: "garbage", backend: "two", logs: causeConfigRefused + " garbage"},
		{name: "impossible here", config: "impossible 10.5.0.0/16", backend: "two", logs: causeConfigRefused + " impossible"},
		{name: "a valid one", config: "two 10.5.0.0/16", backend: "two"},
		{name: "covers the underlay", config: "one 192.168.0.0/16", backend: "two", logs: causeConfigRefused + " 192.168.0.0/16"},
		{name: "another address", link: func() { u.link.V4 = netip.MustParseAddr("192.168.0.2"); u.link.PublicV4 = u.link.V4 },
			backend: "two", publicIP: "192.168.0.2", logs: causeUnderlayChanged + " 192.168.0.2"},
		{name: "the underlay is gone", link: func() { u.err = errors.New("no interface") }, backend: "two", publicIP: "192.168.0.2", fails: true},
		{name: "and back", link: func() { u.err = nil }, backend: "two", publicIP: "192.168.0.2"},
		{name: "an address inside our own subnet", link: func() { u.link.V4 = netip.MustParseAddr("10.5.1.3") }, backend: "two",
			publicIP: "192.168.0.2", fails: true},
		{name: "an address inside the network", link: func() { u.link.V4 = netip.MustParseAddr("10.5.3.3") }, backend: "two",
			publicIP: "192.168.0.2", logs: causeConfigWarning + " 10.5.3.3"},
		{name: "a better one", link: func() { u.link.V4 = netip.MustParseAddr("192.168.0.2") }, backend: "two", publicIP: "192.168.0.2"},
	} {
		log.Reset()
		if step.link != nil {
			step.link()
		} else {
			in.setConfig([]byte(step.config))
		}
		err := l.reconfigured(t, step.link != nil)
		pending, _ := d.adoption.pendingReason()
		if got := n.backend.(namedBackend).name; got != step.backend || (err != nil) != step.fails || !logged(log, strings.Fields(step.logs)) {
			t.Errorf("%s: backend %q, error %v, log %s", step.name, got, err, log)
		}
		refused = step.config != "" && strings.HasPrefix(step.logs, causeConfigRefused) || step.config == "" && refused
		if refused != (pending != "") {
			t.Errorf("%s: refused: %t, but the pending configuration is %q", step.name, refused, pending)
		}
		if want := step.publicIP; want != "" && n.lease.V4.PublicIP.String() != want {
			t.Errorf("%s: public IP %s, want %s", step.name, n.lease.V4.PublicIP, want)
		}
	}
}

// logged reports whether a record has a cause and names values; without any, it is true.
func logged(log *logtest.Log, want []string) bool {
	if len(want) == 0 {
		return true
	}
	return len(log.With("cause="+want[0]).Naming("", want[1:]...)) > 0
}

func TestEverythingIsSaidOnce(t *testing.T) {
	d, _, log := newDaemon(t)
	l := d.newLoop(&node{backend: namedBackend{}}, newInbox())
	lines := func() int {
		defer log.Reset()
		return log.Count()
	}
	broken := failures{{"dataplane", errors.New("no")}}
	for _, step := range []struct {
		name   string
		failed failures
		bad    int
		lines  int
	}{
		{"waiting for the store", failures{{"peers", errNoPeers}, {"publish", errNotPublished}}, 0, 0},
		{"in step", nil, 0, 1},
		{"still", nil, 0, 0},
		{"broken", broken, 0, 1},
		{"still broken", broken, 0, 0},
		{"broken in another way", failures{{"dataplane", errors.New("yes")}}, 0, 1},
		{"mended", nil, 0, 1},
		{"rejects", nil, 3, 3},
		{"the same", nil, 3, 0},
		{"one less", nil, 2, 1},
		{"hundreds, each by its name", nil, 500, 498},
		{"still hundreds", nil, 500, 0},
		{"one of them is deleted", nil, 499, 0},
	} {
		p := l.newPass()
		p.failed = step.failed
		for i := range 3 { // a peer in each pass, bad or not
			p.set.Leases = append(p.set.Leases, &subnet.Lease{Name: fmt.Sprint("key", i)})
		}
		for i := range step.bad {
			p.rejects = append(p.rejects, subnet.Rejected{Name: fmt.Sprint("key", i), Reason: "bad"})
		}
		l.report(p)
		if got := lines(); got != step.lines {
			t.Errorf("%s: %d log lines, want %d", step.name, got, step.lines)
		}
	}
}

// A peer that is bad in another way at every pass, among hundreds that are just bad, costs few lines; and all
// that stay are named in the end.
func TestLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, log := newDaemon(t)
		rejects := d.rejectsPart()
		for i := range 1200 { // ten minutes
			p := &pass{}
			for k := range maxLines + 50 {
				p.rejects = append(p.rejects, subnet.Rejected{Name: fmt.Sprintf("key%04d", k), Reason: "bad"})
			}
			if i%2 == 0 {
				p.rejects = append(p.rejects, subnet.Rejected{Name: "key9999", Reason: fmt.Sprint("bad in way ", i)})
			}
			rejects.report(p)
			rejects.log(p)
			if p.due.IsZero() && i == 0 {
				t.Error("no pass will name those that are omitted")
			}
			time.Sleep(500 * time.Millisecond)
		}
		said := log.With()
		if got := len(said); got > maxLines+600+20 {
			t.Errorf("%d lines in ten minutes", got)
		}
		for k := range maxLines + 50 {
			if got := len(said.With(fmt.Sprintf("peer=key%04d", k))); got != 1 {
				t.Fatalf("key%04d was named %d times", k, got)
			}
		}
		if len(said.With("cause="+causePeersOmitted)) == 0 {
			t.Error("it is not said that some are not named")
		}
	})
}

// mixedBackend has something against Windows nodes.
type mixedBackend struct{ namedBackend }

func (mixedBackend) ForWindows() string { return "Set VNI." }

func TestWindowsNodes(t *testing.T) {
	d, _, log := newDaemon(t)
	mixed, windows := mixedBackend{}, d.windowsPart()
	for i, step := range []struct {
		windows string
		backend backend.Backend
		lines   int
	}{{"", mixed, 0}, {"win1", mixed, 1}, {"win1", mixed, 0}, {"win1", namedBackend{}, 0}, {"win1", mixed, 1}, {"", mixed, 0}} {
		p := &pass{node: &node{backend: step.backend}, set: subnet.Set{Windows: step.windows}}
		windows.report(p)
		windows.log(p)
		told := log.With("cause="+causeWindowsMismatch).Naming("reason", "win1", "Set VNI.")
		if log.Count() != step.lines || len(told) != step.lines {
			t.Errorf("step %d: %s", i, log)
		}
		log.Reset()
	}
}

// Two parts with one name are one part that failed.
func TestFailuresAreCountedByName(t *testing.T) {
	var f failures
	link, config := errors.New("no interface"), reconcile.Unknown(errors.New("no descriptors"))
	f.add(partConfig, link)
	f.add(partDevices, nil)
	f.add(partConfig, config)
	if got := f.parts(); !slices.Equal(got, []string{partConfig}) || !errors.Is(f.err(), link) || !errors.Is(f.err(), config) || !f.unknown() {
		t.Errorf("failed are %v: %v", got, f.err())
	}
}

func TestPublishOnlyWhatDiffers(t *testing.T) {
	in := newInbox()
	one := subnet.Lease{Backend: "vxlan", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24")}}
	in.published = &one
	if seen, err := in.requestPublish(one); !seen || err != nil {
		t.Errorf("what is published already: %t, %v", seen, err)
	}
	other := one
	other.V4.Data = []byte("{}")
	<-in.publish
	if seen, _ := in.requestPublish(other); seen {
		t.Error("what is not published yet counts as seen")
	}
	<-in.publish
	in.requestPublish(other)
	select {
	case <-in.publish:
		t.Error("asked twice for the same")
	default:
	}
}

func TestWatchdogIsFedUnlessAPassHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		var fed atomic.Int64
		d.Notify, d.Watchdog = func(string) { fed.Add(1) }, 2*time.Minute
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.feedWatchdog(ctx) }()
		expect := func(what string, wait time.Duration, times int64) {
			t.Helper()
			fed.Store(0)
			time.Sleep(wait)
			synctest.Wait()
			if got := fed.Load(); got != times {
				t.Errorf("%s: fed %d times in %v, want %d times", what, got, wait, times)
			}
		}
		time.Sleep(time.Second) // between two ticks, so that none is at the end of a wait
		expect("waiting for an hour", time.Hour, 60)
		d.Board.BeginPass()
		expect("a pass that takes two minutes", 2*time.Minute, 2)
		expect("a pass that hangs", time.Hour, 0)
		d.Board.EndPass(errors.New("not all of it"))
		expect("idle after the pass", time.Hour, 60)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
