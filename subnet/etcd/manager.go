// Package etcd keeps subnet leases in etcd, in flannel's layout: one key per node below <prefix>/subnets/, on an etcd
// lease of 24 hours, and the network configuration at <prefix>/config.
//
// Everything that is read is read by one means (follow): a list, then a watch from its revision. What it learns goes
// to a consumer, of which there are three: the network configuration, the others' leases, our own key.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
	"flannel/subnet/patience"
	"flannel/subnet/peerset"
)

// Options says where etcd is and how to speak to it. Only Endpoints is required.
type Options struct {
	Endpoints []string // URLs; the first one's scheme counts for all
	Prefix    string   // of all keys, "/coreos.com/network" when empty

	CertFile, KeyFile string // client certificate (PEM), read again for each connection
	CAFile            string // what the server's certificate is checked against; empty: the system's
	Username          string
	Password          string // never logged; crosses the network in clear text unless the endpoints are https

	RenewMargin time.Duration    // renew so long before the lease ends; 0 is an hour
	TTL         time.Duration    // of a new lease; 0 is 24 hours, which is what flannel expects
	Retain      time.Duration    // how long peers stay that a mass withdrawal takes away; 0: not at all
	Log         *slog.Logger     // nil: silence
	Outage      *patience.Outage // to be told whether etcd answers; nil: nobody else wants to know

	keepAlive time.Duration // for tests: how long a connection may be silent before it is asked; 0 is 10 s
}

// Manager implements subnet.Manager. Its methods may run side by side; Publish and Hold need an Acquire before them.
type Manager struct {
	client *clientv3.Client
	wire   *wire
	log    *slog.Logger
	outage *patience.Outage

	user            string // "": the client certificate says it, or etcd asks for none
	prefix, subnets string // "<prefix>", "<prefix>/subnets/"
	margin, ttl     time.Duration
	retain          time.Duration

	mu    sync.Mutex
	claim *claim    // nil before Acquire; its fields are guarded by mu, too
	seed  *snapshot // what Acquire listed, to spare Watch a list of its own

	watched  atomic.Pointer[peerset.Keeper] // the peers, nil before Watch
	accepted atomic.Pointer[time.Time]      // when a withdrawal was accepted last; nil: never

	own         atomic.Pointer[string] // our key, nil before Acquire; Watch must not wait for mu
	acquired    chan struct{}          // closed when there is a claim
	ownChanged  chan struct{}          // a token for Watch: the key that it leaves out is another
	claimAgain  chan struct{}          // a token for Hold: try again to mend our key
	leaseIsNew  chan struct{}          // a token for the renewal: our etcd lease is another
	acquireOnce sync.Once
	strangeOnce sync.Once
}

var (
	_ subnet.Manager  = (*Manager)(nil)
	_ subnet.Redialer = (*Manager)(nil)
	_ subnet.Accepter = (*Manager)(nil)
)

// New checks o and prepares a client. It connects in the background, but with a user name it logs in first, and waits
// for etcd to do so. Its errors are those that waiting cannot mend: a file, an endpoint, a wrong password. The Manager
// outlives ctx and must be closed.
func New(ctx context.Context, o Options) (*Manager, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	w := &wire{}
	cfg, err := o.client(w)
	if err != nil {
		return nil, err
	}
	if (o.Username == "") != (o.Password == "") {
		log.Warn("etcd: user name and password count only together: going on without a login")
	}
	if endpoint := plaintext(cfg); endpoint != "" {
		log.Warn("the etcd password crosses the network unencrypted; use https:// endpoints and --etcd-cafile",
			"endpoint", endpoint, "user", cfg.Username)
	}
	prefix := "/coreos.com/network"
	if o.Prefix != "" {
		prefix = strings.TrimRight(o.Prefix, "/") // a leading slash is part of the name: none is added
	}
	m := &Manager{
		wire: w, log: log, outage: cmp.Or(o.Outage, patience.NewOutage(log, "etcd")),
		user: cfg.Username, prefix: prefix, subnets: prefix + "/subnets/",
		margin: positive(o.RenewMargin, time.Hour), ttl: positive(o.TTL, 24*time.Hour), retain: o.Retain,
		acquired: make(chan struct{}), ownChanged: make(chan struct{}, 1),
		claimAgain: make(chan struct{}, 1), leaseIsNew: make(chan struct{}, 1),
	}
	err = m.retry(ctx, "log in", func(ctx context.Context) error { return m.connect(ctx, cfg) })
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return m, nil
}

// ErrLogin is what New returns when etcd refuses user name and password.
var ErrLogin = errors.New("wrong user name or password")

// Causes in the log.
const (
	causeSeveralLeases = "several-leases"
	causeStoreChanged  = "store-changed" // another or an older one than before
	causeOverwritten   = "lease-overwritten"
	causeConflict      = "lease-conflict"
	causeNoConfig      = "no-config"
	causeConfigGone    = "config-gone"
)

// connect makes the client, which must outlive ctx but must not outwait it.
func (m *Manager) connect(ctx context.Context, cfg clientv3.Config) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	cfg.Context = life
	stop := context.AfterFunc(ctx, end)
	client, err := clientv3.New(cfg)
	if err != nil {
		end()
		if errors.Is(err, rpctypes.ErrAuthFailed) {
			return final{fmt.Errorf("log in as %q: %w", cfg.Username, ErrLogin)}
		}
		return err
	}
	if !stop() {
		client.Close()
		return ctx.Err()
	}
	m.client = client
	return nil
}

// Close ends the connections; what is still running fails. Nothing is taken out of the store.
func (m *Manager) Close() error {
	if err := m.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// Redial implements subnet.Redialer.
func (m *Manager) Redial() {
	m.wire.conns.Drop()
	m.client.ActiveConnection().ResetConnectBackoff()
}

func positive(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// token leaves a note in a channel of capacity one; a note that lies there already will do.
func token(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// requestTimeout is for the first attempt of a request, waiting for a connection included; later ones get more.
const requestTimeout = 3 * time.Second

// final marks an error that no retry mends.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// retry calls op until it succeeds, ctx ends, or the error is final or the loss of our lease.
func (m *Manager) retry(ctx context.Context, what string, op func(context.Context) error) error {
	defer m.outage.Forget(what)
	for b := (patience.Backoff{}); ; {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout<<min(b.Tries, 3))
		err := op(attempt)
		cancel()
		if err == nil {
			m.outage.Over(what)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
		if f := (final{}); errors.As(err, &f) {
			return f.error
		}
		if errors.Is(err, subnet.ErrLost) {
			return err
		}
		m.outage.Failed(what, m.wire.explain(err))
		b.Wait(ctx)
	}
}
