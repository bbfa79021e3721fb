// Package etcd keeps subnet leases in etcd, in flannel's layout: one key per
// node below <prefix>/subnets/, on an etcd lease of 24 hours, and the network
// configuration at <prefix>/config.
//
// Everything is read by follow: a list, then a watch from its revision. It
// hands the keys to a consumer, of which there are three: config (the network
// configuration), peers (the other nodes' leases), and holder (our own lease).
//
// A lease is a node's, in a key; an etcd lease is etcd's own, with which the key
// expires unless somebody renews the etcd lease. A key without an etcd lease is a
// reservation: an operator has written it, with the address of a node, so that the
// node gets this subnet.
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

	"flannel/pkg/conf"
	"flannel/subnet"
	"flannel/subnet/peerset"
)

// Options says where etcd is and how to connect to it. Only Endpoints is required.
type Options struct {
	Endpoints []string // URLs; all are used with the scheme (http or https) of the first one
	Prefix    string   // of all keys, "/coreos.com/network" when empty

	CertFile, KeyFile string // client certificate (PEM), read again for each connection
	CAFile            string // authorities that may sign the server's certificate; empty: the system's
	Username          string
	Password          conf.Secret // never logged; crosses the network in clear text unless the endpoints are https

	RenewMargin time.Duration  // how long before its end the lease is renewed; 0: an hour
	TTL         time.Duration  // of a new lease; 0: 24 hours, as with flannel
	Retain      time.Duration  // how long peers stay in use after many were deleted at once (subnet.IsMass); 0: not at all
	Log         *slog.Logger   // nil: no log
	Outage      *subnet.Outage // shared with the caller, which asks it whether etcd answers; may be nil

	keepAlive time.Duration // for tests: how long a connection may be silent before it is pinged; 0: 10 s
}

// Manager implements subnet.Manager, which says what the methods are for and who calls them.
// Its methods may run concurrently; Publish and Hold need an Acquire before them.
type Manager struct {
	connection
	watched peerset.Watched // the peers of Watch, and the Judge that says which leases this node can use
	own     ownLease        // hold.go
	log     *slog.Logger
	outage  *subnet.Outage

	prefix, subnets     string        // "/coreos.com/network", "/coreos.com/network/subnets/"
	margin, ttl, retain time.Duration // see Options, with its defaults

	configMissing   atomic.Pointer[error] // see ConfigMissing; nil: there is a configuration, or it is not known yet
	unrequestedOnce sync.Once             // see warnUnrequested
}

// connection is how requests reach etcd.
type connection struct {
	client  *clientv3.Client // set by connect, before New returns
	tracker *errorTracker    // keeps the client's last error for the log, and its connections for Redial
	user    string           // "": it is in the client certificate, or etcd requires none
}

var _ subnet.Manager = (*Manager)(nil)

// New checks o and prepares a client. It connects in the background, but with a
// user name it logs in first, and waits for etcd to do so. Its errors are
// permanent: a file, an endpoint, a wrong password. ctx bounds only New: the
// Manager must be closed.
func New(ctx context.Context, o Options) (*Manager, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	tracker := &errorTracker{log: log}
	cfg, err := o.client(tracker)
	if err != nil {
		return nil, err
	}
	if (o.Username == "") != (o.Password == conf.Secret{}) {
		log.Warn("etcd user name and password must be set together, connecting without a login")
	}
	if endpoint := plaintextEndpoint(cfg); endpoint != "" {
		log.Warn("the etcd password crosses the network unencrypted; use https:// endpoints and --etcd-cafile",
			"endpoint", endpoint, "user", cfg.Username)
	}
	prefix := "/coreos.com/network"
	if o.Prefix != "" {
		prefix = strings.TrimRight(o.Prefix, "/") // a leading slash is part of the name: none is added
	}
	m := &Manager{
		connection: connection{tracker: tracker, user: cfg.Username}, own: newOwnLease(),
		log: log, outage: cmp.Or(o.Outage, subnet.NewOutage(log, "etcd")), prefix: prefix, subnets: prefix + "/subnets/",
		margin: cmp.Or(max(o.RenewMargin, 0), time.Hour), ttl: cmp.Or(max(o.TTL, 0), 24*time.Hour), retain: o.Retain,
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
	causeSeveralLeases = "several-leases"    // leases other than ours have our public address
	causeStoreChanged  = "store-changed"     // another or an older one than before
	causeOverwritten   = "lease-overwritten" // someone else has changed our lease
	causeConflict      = "lease-conflict"    // someone else has changed our lease again and again
	causeIgnoredLeases = "leases-ignored"    // the network is full, so leases that are rejected or too large do not count
	causeNoConfig      = "no-config"         // there is none yet
	causeConfigGone    = "config-gone"       // it was deleted
)

// connect makes m.client, and logs in if there is a user name. ctx bounds the login, but
// not the life of the client. New calls it again after an error that is not final.
func (m *Manager) connect(ctx context.Context, cfg clientv3.Config) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	// The client ends with its context, so it gets one that only ends with ctx while it
	// logs in: afterwards stop has detached it.
	cfg.Context = life
	stop := context.AfterFunc(ctx, end) // ctx is that of one attempt of New's retry
	client, err := clientv3.New(cfg)
	if err != nil {
		end()
		if errors.Is(err, rpctypes.ErrAuthFailed) {
			return final{fmt.Errorf("log in as %q: %w", cfg.Username, ErrLogin)}
		}
		return err
	}
	if !stop() { // ctx has ended meanwhile, and the client's context with it
		client.Close()
		return ctx.Err()
	}
	m.client = client
	return nil
}

// Close closes the connections; running requests fail. It removes nothing from
// the store.
func (m *Manager) Close() error {
	// Close cancels the client's context, and may return that as an error.
	if err := m.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// Redial implements subnet.Manager. Requests on the dropped connections fail, and
// gRPC connects again at once, without its backoff.
func (m *Manager) Redial() {
	m.tracker.conns.Drop()
	m.client.ActiveConnection().ResetConnectBackoff()
}

// requestTimeout bounds the first attempt of a request, with the wait for a
// connection. Later attempts get more time.
const requestTimeout = 3 * time.Second

// final marks an error that no retry can fix, for retry: a wrong password, a missing permission, an invalid value.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// retry calls op until it succeeds, ctx ends, or the error is final or ErrLost.
// Errors of the last two kinds are returned as they are. The only other error is that
// ctx has ended. what names the request in that error, and in the outage (see
// subnet.Outage). The attempts get 3, 6, 12 and then always 24 seconds, for slow
// links. op must be safe to repeat: a request that timed out may have been carried out.
func (m *Manager) retry(ctx context.Context, what string, op func(context.Context) error) error {
	defer m.outage.Forget(what) // after Over, this has no effect
	for tries := 0; ; tries++ {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout<<min(tries, 3))
		err := op(attempt)
		cancel()
		if err == nil {
			m.outage.Over(what)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
		if f, ok := errors.AsType[final](err); ok {
			return f.error
		}
		if errors.Is(err, subnet.ErrLost) { // only from Publish: our lease is gone, although the store answers
			return err
		}
		m.outage.Failed(what, m.tracker.explain(err))
		subnet.Pause(ctx, tries)
	}
}
