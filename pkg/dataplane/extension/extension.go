// Package extension runs the commands of the extension backend. Its Dataplane wraps
// the one of the operating system: it keeps the paths that commands make to itself,
// and passes everything else on.
//
//	command       runs                                          then
//	PreStartup    at the start, before the lease is published   its output is published
//	PostStartup   when the lease has been described, and again  commands for peers run
//	              when the node's subnet or address changes
//	SubnetAdd     for each peer at the start, and for a new one
//	SubnetRemove  for a peer that is gone, and with its former
//	              values before SubnetAdd for one that changed
//
// The commands of one peer run one after another, those of several peers at the
// same time. A command that fails is retried, at growing intervals, and concerns
// only its peer: peers whose last command hung, or failed slowly, have slots of
// their own, so that the others do not wait for them. What the commands made cannot
// be read, so that nothing is known of an earlier run, and drift is not repaired.
// Commands that still run when the process is killed are killed as well: by the next
// process, on Windows by the system.
package extension

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

const (
	timeLimit   = 30 * time.Second // of one command, after which it is killed
	atOnce      = 8                // number of commands for peers
	slowAtOnce  = 4                // and for those whose last command failed slowly
	slowAfter   = time.Second      // how long a command runs whose failure is slow
	firstRetry  = time.Second
	lastRetry   = 5 * time.Minute
	passPatient = 2 * time.Second // how long a pass waits for commands
)

// inner is the Dataplane of the operating system.
type inner = dataplane.Dataplane

// Dataplane is a dataplane.Dataplane: the inner one, except for the methods that it has
// itself. The loop calls them; each running command has a goroutine.
type Dataplane struct {
	inner
	opts    dataplane.Options
	marks   *marks        // files by which the next process finds commands that still run
	limit   limiter       // the context of a command; its cause is context.DeadlineExceeded when it has run for too long
	retry   time.Duration // firstRetry, less in tests
	slow    time.Duration // slowAfter, another one in tests
	patient time.Duration // passPatient, another one in tests
	changes chan struct{} // wakes the loop
	ended   chan struct{} // a command has ended: for waitUntil
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup             // goroutines
	former  func(context.Context) bool // endFormer, another one in tests
	// ending is when the commands of a former process were first to be ended; zero:
	// they were not yet.
	ending time.Time
	alone  bool // no command of a former process is waited for

	device *dataplane.Commands // of the last Ensure; nil: another backend
	name   string              // of that device
	paths  []*dataplane.Path   // of the last Apply
	stale  bool                // peers that are not in paths may be wanted, since a State.Keep forbade to remove them
	// deadline is when the removals for another backend are given up; zero: there are
	// none.
	deadline time.Time

	mu        sync.Mutex // guards what follows
	startLane lane       // for startups; has a slot for each, since all peers may have to wait for them
	normal    lane       // for peers
	slowLane  lane       // for slow ones
	pending   int        // how many units are (unit.pending)
	pre, post startup
	peers     map[key]*peer

	peerCommands [2]string // SubnetAdd and SubnetRemove of the last Apply
}

// New wraps the dataplane of the system, which Close closes.
func New(system dataplane.Dataplane, o dataplane.Options) *Dataplane {
	d := &Dataplane{inner: system, opts: o, marks: &marks{path: filepath.Join(o.StateDir, ".command-"+o.Instance+"."), log: o.Log},
		limit: limited, retry: firstRetry, slow: slowAfter, patient: passPatient,
		startLane: lane{slots: 2}, normal: lane{slots: atOnce}, slowLane: lane{slots: slowAtOnce},
		changes: make(chan struct{}, 1), ended: make(chan struct{}, 1), peers: map[key]*peer{}}
	d.former = d.endFormer
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.tasks.Go(func() {
		for {
			select {
			case <-d.ctx.Done():
				return
			case <-system.Changes():
				reconcile.Notify(d.changes)
			}
		}
	})
	return d
}

// Changes implements Dataplane.
func (d *Dataplane) Changes() <-chan struct{} { return d.changes }

// Close implements Dataplane. It kills running commands.
func (d *Dataplane) Close() error {
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
	d.tasks.Wait()
	return d.inner.Close()
}

// Ensure implements Dataplane. The link of Commands exists when PreStartup has
// succeeded. No command runs before those of a former process have ended, which are
// waited for as long as for a command of this one.
func (d *Dataplane) Ensure(ctx context.Context, devices []dataplane.Device) (dataplane.Links, error) {
	if d.ending.IsZero() {
		d.ending = time.Now()
	}
	d.alone = d.alone || d.former(ctx) || time.Since(d.ending) >= timeLimit
	i := slices.IndexFunc(devices, func(dev dataplane.Device) bool { _, is := dev.Kind.(dataplane.Commands); return is })
	if i < 0 {
		d.device = nil
		d.restart()
		return d.inner.Ensure(ctx, devices)
	}
	commands := devices[i].Kind.(dataplane.Commands)
	d.device, d.name, d.deadline = &commands, devices[i].Name, time.Time{}
	links, err := d.inner.Ensure(ctx, slices.Delete(slices.Clone(devices), i, i+1))
	if !d.alone {
		return links, errors.Join(err, dataplane.Waiting(causeFormer, "commands of the former flanneld"))
	}
	d.want(&d.pre, command{key: "PreStartupCommand", line: commands.PreStartup})
	if problem := d.await(ctx, &d.pre); problem != nil {
		return links, errors.Join(err, problem)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := dataplane.Links{d.name: {Output: d.pre.output}}
	maps.Copy(out, links)
	return out, err
}

// restart makes PreStartup and PostStartup run again when there are commands again.
func (d *Dataplane) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range []*startup{&d.pre, &d.post} {
		s.have, s.want, s.next = "", "", func() *step { return nil }
		s.hurry()
	}
}

// Found implements Dataplane. Paths by commands cannot be found.
func (d *Dataplane) Found(ctx context.Context, links dataplane.Links, s dataplane.State) ([]*dataplane.Path, error) {
	if d.device != nil {
		return nil, nil
	}
	return d.inner.Found(ctx, links, s)
}

// Apply implements Dataplane. Commands run before the driver of the operating
// system deletes what another backend made, so that they can replace it. The driver
// adds what another backend needs for a peer after SubnetRemove, which might remove
// it, has succeeded or was given up.
func (d *Dataplane) Apply(ctx context.Context, links dataplane.Links, s dataplane.State) ([]dataplane.Refused, error) {
	if d.device == nil { // another backend: peers with commands are removed, if there are any
		d.wantPeers(dataplane.State{Keep: s.Keep})
		rest, waiting := d.leave(ctx, s)
		refused, err := d.inner.Apply(ctx, links, rest)
		return refused, errors.Join(waiting, err)
	}
	started := d.start(ctx, links, s)
	if started == nil {
		d.wantPeers(s)
		started = d.awaitPeers(ctx)
	}
	rest := s // for the inner dataplane, which has no paths; routes and devices may be those of the commands
	rest.Paths, rest.Since, rest.Changes = nil, nil, nil
	rest.Unrouted, rest.KeepDevices = true, true
	rest.Keep = s.Keep || started != nil
	refused, err := d.inner.Apply(ctx, links, rest)
	return append(refused, d.failedPeers()...), errors.Join(started, err)
}

// start runs PostStartup. It returns nil when that has succeeded.
func (d *Dataplane) start(ctx context.Context, links dataplane.Links, s dataplane.State) error {
	if _, ok := links[d.name]; !ok {
		return dataplane.Waiting(causeCommands, "PreStartupCommand")
	}
	c := *d.device
	network := ""
	for _, n := range s.Networks {
		if n.Addr().Is4() {
			network = n.String()
		}
	}
	d.want(&d.post, command{key: "PostStartupCommand", line: c.PostStartup, env: join("NETWORK="+network, ends(c.V4, c.V6))})
	return d.await(ctx, &d.post)
}

// failedPeers returns the paths of the peers whose last command failed, or whose next
// one may wait for a slot for minutes.
func (d *Dataplane) failedPeers() (refused []dataplane.Refused) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.peers {
		err := p.err
		if err == nil && p.running && !p.pending {
			err = dataplane.Waiting(causeCommands, "commands for the peer")
		}
		if err == nil || p.want == nil {
			continue
		}
		for _, dst := range []netip.Prefix{p.want.V4.Subnet, p.want.V6.Subnet} {
			if dst.IsValid() {
				refused = append(refused, dataplane.Refused{Dst: dst, Err: err})
			}
		}
	}
	slices.SortFunc(refused, func(a, b dataplane.Refused) int { return a.Dst.Compare(b.Dst) })
	return refused
}
