package reach

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"flannel/pkg/reconcile"
	"flannel/pkg/status"
)

// Conn sends and receives ICMP echo messages: path.Socket of pkg/probe. The Prober uses it only
// with its lock held, apart from Await.
type Conn interface {
	// Send sends an echo request. A zero from leaves the source to the system, as hops 0
	// does the hop limit.
	Send(from, to netip.Addr, hops int, body []byte) error
	// Receive returns a message that has arrived, with its body until the next call: a
	// request, an answer to one, or (expired) a report that the hop limit of one has
	// ended, with the body of that. It does not block.
	Receive() (from netip.Addr, answer, expired bool, body []byte, ok bool)
	// Await returns at once, and calls arrived whenever messages have arrived, on goroutines of
	// its own, until the Conn is closed. arrived must call Receive, and returns whether there may be more.
	Await(arrived func() (more bool))
	// Up reports whether an interface has a carrier.
	Up(device string) bool
}

// Options are what a Prober needs, apart from its Conn. All fields must be set.
type Options struct {
	Log *slog.Logger
	RTT func(time.Duration) // an answer took that long; called with the Prober's lock held, for a metric
}

const (
	// lasting is for how long a peer is unreachable before reportUnreachable is called.
	// Shorter outages are only logged, since a report becomes an Event of the Node.
	lasting = time.Minute

	// After maxLines, a line every lineEvery is logged about peers.
	maxLines  = 20
	lineEvery = 3 * time.Second
	// maxReceived is how many messages one drain takes, more than the socket holds. Who
	// sends more than that disturbs the probes, not the daemon.
	maxReceived = 10000
	// manyTargets is the number of targets from which on a round takes so long that a second more does not count.
	manyTargets = 100
	// reportEvery is a number of turns: mesh.Lasting looks at all peers that are down.
	reportEvery = 10
)

// Prober probes peers by a mesh. Its methods may be called by any goroutine: the daemon runs
// Run in one of its own, its loop calls Update, and whoever asks the Board calls Fill and
// Summary. The Prober is nil if peers are not probed: on Windows, with --probe=false, or
// without permission. Then Run, Update and Fill do nothing, and nobody calls Summary.
type Prober struct {
	conn Conn
	o    Options

	mu      sync.Mutex
	mesh    *mesh
	network *Network      // not passed to mesh yet; nil: the mesh has the latest
	turns   int           // of Run; every reportEvery-th reports
	lasting []string      // as last reported
	lines   *rate.Limiter // of lines about peers in the log
	omitted int           // changes that were not logged
}

// New returns a Prober. Run must be called. The caller closes conn, after Run has ended.
func New(conn Conn, o Options) *Prober {
	return &Prober{conn: conn, o: o, mesh: newMesh(rand.IntN, rand.Uint64), lines: rate.NewLimiter(rate.Every(lineEvery), maxLines)}
}

// Update sets the Network, as it is after a pass of the daemon's loop. The next turn passes
// it to the mesh, so that the loop does not wait for that.
func (p *Prober) Update(n Network) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network = &n
}

// Run probes until ctx ends. reportUnreachable receives the names of all peers that have
// been unreachable for at least lasting, whenever one is added or removed. It is called with
// the Prober's lock held, so it must not block nor call the Prober.
func (p *Prober) Run(ctx context.Context, reportUnreachable func(peers []string)) error {
	if p == nil {
		return nil
	}
	p.conn.Await(p.receive)
	// Beats: at the moments at which the process wakes anyway. Before the first Update, a turn asks nobody.
	turns := reconcile.Runner{Resync: 2 * interval, Beats: true, Work: func(context.Context) (time.Duration, error) {
		p.turn(reportUnreachable)
		if !p.quiet() {
			return interval, nil
		}
		p.turn(reportUnreachable)
		return 0, nil // 0: again after Resync
	}}
	turns.Run(ctx)
	return nil
}

// quiet reports whether two turns may come at once every other interval, which wakes the process half as often. Among so
// many targets, each of which is asked once in a round of manyTargets seconds or more, nobody sees the difference. Suspects are
// decided turn by turn.
func (p *Prober) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mesh.order) >= manyTargets && len(p.mesh.suspects) == 0
}

// receive is called by Conn.Await when messages have arrived.
func (p *Prober) receive() (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drain()
}

// drain passes what has arrived to the mesh, up to maxReceived messages, so that a sender
// without pauses cannot keep Run from its turns. It returns whether there may be more. The
// caller holds the lock.
func (p *Prober) drain() (more bool) {
	for range maxReceived {
		from, answer, expired, body, ok := p.conn.Receive()
		if !ok {
			return false
		}
		if rtt, measured := p.mesh.Received(p.mesh.at(time.Now()), from, answer, expired, body); measured {
			p.o.RTT(rtt)
		}
	}
	return true
}

// turn takes everything that has arrived before the mesh looks for what has not. The mesh
// has times as moments, which mesh.at converts.
func (p *Prober) turn(reportUnreachable func(peers []string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network != nil {
		p.mesh.Update(p.mesh.at(time.Now()), *p.network)
		p.network = nil
	}
	p.drain()
	now := time.Now()
	link := p.mesh.network.Link // the underlay; "" before the first Update
	p.mesh.SetLink(p.mesh.at(now), link == "" || p.conn.Up(link))
	if r, due := p.mesh.Turn(p.mesh.at(now)); due { // not due: there is nobody to ask
		if err := p.conn.Send(r.from, r.to, r.hops, r.body); err != nil && !noWay(err) { // such as EMSGSIZE
			p.mesh.SendFailed(r)
		}
	}
	p.logChanges(now)
	if p.turns++; p.turns%reportEvery != 0 {
		return
	}
	if names := p.mesh.Lasting(p.mesh.at(now), lasting); !slices.Equal(names, p.lasting) {
		p.lasting = names
		reportUnreachable(names)
	}
}

// noWay reports whether this node has no way to the address that it sent to, because of a
// route (RTN_UNREACHABLE, RTN_PROHIBIT or RTN_BLACKHOLE; the last one is EINVAL) or a
// firewall: pods do not reach the peer then, so that the request counts as lost.
func noWay(err error) bool {
	return slices.ContainsFunc([]error{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EINVAL, syscall.EPERM},
		func(e error) bool { return errors.Is(err, e) })
}

// Fill adds to peers what is known of them.
func (p *Prober) Fill(peers []status.Peer) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range peers {
		peers[i].Reach = p.mesh.Reach(peers[i].Name)
	}
}

// Summary returns what is known of all peers.
func (p *Prober) Summary() status.Probes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mesh.Summary()
}

// Causes in the log.
const (
	causeUnreachable = "peer-unreachable"
	causeOneWay      = "peer-one-way"
	causeMTU         = "peer-mtu"
	causeForwarding  = "peer-not-forwarding"
	causeReachable   = "peer-reachable"
	causeOmitted     = "peers-omitted"
	causeNoProbes    = "no-probes"
)

// messages are the causes and the texts of lines, by state: all states that raise an alarm.
var messages = map[status.ReachState][2]string{
	status.Unreachable:   {causeUnreachable, "peer is unreachable: it answers no probes; flanneld doctor looks for the cause"},
	status.OneWay:        {causeOneWay, "peer is reachable in one direction only: its probes arrive, but it does not answer; flanneld doctor looks for the cause"},
	status.NotForwarding: {causeForwarding, "peer answers, but does not forward packets from or to its pods; flanneld doctor on that node looks for the cause"},
	status.SmallOnly:     {causeMTU, "peer answers small packets, but none of the size of the pods' MTU; flanneld doctor looks for the cause"},
}

// logChanges logs peers that are unreachable, and those that are reachable again. The
// caller holds the lock.
func (p *Prober) logChanges(now time.Time) {
	if p.omitted > 0 && p.lines.AllowN(now, 1) {
		p.o.Log.Warn("too many changes of peers to log each of them; flanneld status --peers shows all", "cause", causeOmitted, "count", p.omitted)
		p.omitted = 0
	}
	for _, c := range p.mesh.Changes(p.mesh.at(now)) {
		if !p.lines.AllowN(now, 1) {
			p.omitted++
			continue
		}
		attributes := []any{"peer", c.Peer, "target", c.Reach.Target, "via", c.Reach.Via}
		if c.Outage > 0 {
			p.o.Log.Info("peer answers again", append(attributes, "cause", causeReachable, "state", c.Reach.State, "after", c.Outage.Round(time.Second))...)
			continue
		}
		m := messages[c.Reach.State] // has all states with which an outage begins
		p.o.Log.Warn(m[1], append(attributes, "cause", m[0], "answered", ago(now, c.Reach.Answered), "heard", ago(now, c.Reach.Heard))...)
	}
}

// ago formats how long ago something was.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return now.Sub(t).Round(time.Second).String() + " ago"
}

// Unavailable logs why there are no probes. The attribute problem is err, and error is what
// err wraps, such as "operation not permitted"; nil if err joins several errors.
func Unavailable(log *slog.Logger, err error) {
	log.Warn("cannot probe peers, so outages are not reported; flanneld needs CAP_NET_RAW for it, or --probe=false", "cause", causeNoProbes,
		"error", errors.Unwrap(err), "problem", err)
}
