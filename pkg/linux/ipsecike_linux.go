package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/charon"
	"flannel/pkg/reconcile"
)

// ikeStore holds the connections in charon between subnets of our networks: it is the
// reconcile.Store of the table ipsec.ikes. charon does not return all of their content, so
// that List returns what this run has loaded into this charon. Others are loaded again,
// which leaves their security associations as they are, except those of former options (hasFormer); if charon
// may have taken another content in this run, all of them end.
//
// Which node begins to negotiate:
//
//	security association   the node with the smaller address   the other
//	never seen             at once                             after 5 s
//	gone                   at once                             at once
//	negotiation failed     after 5 s, 10 s … 5 min             likewise
//
// charon itself repeats a negotiation that the peer does not answer, and notifies when a
// security association ends. If charon has one whose keys somebody has deleted from the
// kernel (lost), the store has charon replace it (Rekey). Each list, every pollInterval at least,
// decides anew: due has the conditions, Set sets the delay.
//
// The loop, or the goroutine of Apply for which the loop waits (see Driver), has all fields to
// itself, through ipsec and the table, except the atomic ones. A goroutine (connect) waits for
// charon's notifications.
type ikeStore struct {
	log    *slog.Logger
	config string                          // configuration file of a charon that flanneld starts
	scope  *scopePointer                   // says which subnets are in our networks
	used   func() bool                     // there may be connections in charon, also of an earlier configuration
	needed func() bool                     // the backend is ipsec
	spis   func() (map[uint32]bool, error) // identify the security associations that the kernel has
	notify func()                          // makes the loop list the connections; any goroutine may call it

	client  *charon.Client    // for commands; nil: not connected
	own     bool              // flanneld has started the charon of client, or the one to which connect just failed to connect
	watch   *charon.Client    // a second connection, for notifications; valid while client is not nil
	watcher sync.WaitGroup    // of the goroutine that waits for notifications
	ended   atomic.Bool       // the charon of client has ended, or does not notify any more
	starts  reconcile.Backoff // of start
	// state is that of the charon that start has started last (see charon.Start). nil: this run has started none since
	// the last connect or stop, or has reported its end.
	state func() (output string, ended error)
	kills int // how often charons were killed that did not listen in time, since the last connect
	// othersEnded is when a charon that somebody else had started was last found to have ended; zero: never.
	othersEnded time.Time
	applied     map[ikeKey]ikeConn   // loaded in this run, or unknownConn; the next list drops what charon does not have. nil before the first connect, like states
	states      map[ikeKey]*ikeState // as of the last list, and of what Set has begun since
	replaced    map[ikeKey]bool      // what was negotiated by their former content is to end: see endReplaced
	// traffic is for Driver.Traffic, by the peers' subnets; nil: not connected.
	traffic atomic.Pointer[map[netip.Prefix]dataplane.TunnelReport]
}

func (*ikeStore) Name() string { return "connections" }

// connect connects to charon, unless it is connected already. If charon has ended since, it
// connects to the next one, which knows nothing of what this run has loaded: the next list finds that.
// Without a charon, its error is charon.ErrNotRunning.
func (s *ikeStore) connect() error {
	if s.ended.Load() {
		if s.client != nil && !s.own {
			s.othersEnded = time.Now()
		}
		s.disconnect()
	}
	if s.client != nil {
		return nil
	}
	client, err := charon.Dial(charon.Socket)
	if err != nil {
		s.own = !errors.Is(err, charon.ErrNotRunning) && charon.Runs(s.config) // it may accept no more connections
		return err
	}
	pid, unread := client.Started(s.config)
	s.own = pid != 0
	version, err := client.Version()
	if err == nil {
		s.watch, err = charon.Dial(charon.Socket)
	}
	if err != nil {
		if s.needed() || !s.mayStop() { // else List fails because it is not known whether stop ends this charon
			unread = nil
		}
		return errors.Join(err, client.Close(), unread)
	}
	s.forgetStarts()
	s.client = client
	if s.applied == nil {
		s.applied, s.states = map[ikeKey]ikeConn{}, map[ikeKey]*ikeState{}
	}
	watch := s.watch
	s.watcher.Go(func() {
		_ = watch.Watch(s.notify) // it ends with the daemon, or with disconnect
		s.ended.Store(true)
		s.notify()
	})
	s.log.Info("connected to strongSwan's IKE daemon", "version", version, "socket", charon.Socket)
	return nil
}

// disconnect closes the connections to charon, which goes on. The next connect opens them again.
func (s *ikeStore) disconnect() {
	if s.client != nil {
		_, _ = s.client.Close(), s.watch.Close()
		s.watcher.Wait() // before ended is reset, which the goroutine sets
		s.client = nil
		s.ended.Store(false)
		s.traffic.Store(nil)
	}
}

func (s *ikeStore) List(context.Context) (map[ikeKey]ikeConn, error) {
	if !s.used() {
		return nil, nil // there are no connections, and charon may not be installed
	}
	var out map[ikeKey]ikeConn
	err := s.connect()
	if err == nil {
		if out, err = s.list(); err != nil {
			s.disconnect()
		}
	}
	if err != nil && !s.needed() && (s.own || errors.Is(err, charon.ErrNotRunning)) {
		return nil, nil // connections end with charon: none runs, or stop ends it
	}
	return out, err
}

// list is List with a connection to charon. It also replaces applied, states and traffic.
func (s *ikeStore) list() (map[ikeKey]ikeConn, error) {
	names, err1 := s.client.Connections()
	secrets, err2 := s.client.Secrets()
	sas, err3 := s.client.SAs()
	spis, err4 := s.spis()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	byName := map[string][]charon.SA{}
	for _, sa := range sas {
		byName[sa.Name] = append(byName[sa.Name], sa)
	}
	out, applied := map[ikeKey]ikeConn{}, map[ikeKey]ikeConn{}
	states, traffic := map[ikeKey]*ikeState{}, map[netip.Prefix]dataplane.TunnelReport{}
	scope, hasConn, hasSecret := s.scope.Load(), setOf(names), setOf(secrets)
	// A connection without its secret, or a secret without its connection, is a part of a connection that could
	// not be loaded or unloaded, and one in replaced may have security associations: Set or Delete completes that.
	all := setOf(slices.Concat(names, secrets))
	for key := range s.replaced {
		all[key.String()] = true
	}
	for name := range all {
		key, ok := parseIKE(name)
		if !ok || !scope.has(key.LocalNet) || !scope.has(key.RemoteNet) {
			continue
		}
		state := s.observe(key, byName[name], spis)
		conn := unknownConn
		if before, ok := s.applied[key]; ok && hasSecret[name] && hasConn[name] {
			conn, applied[key] = before, before
			if _, known := s.replaced[key]; !known && state.hasFormer(ikeEntry{Key: key, Value: before}) {
				s.replaced[key] = false
			}
		}
		out[key], states[key] = s.listed(key, conn, state), state
		traffic[key.RemoteNet] = trafficOf(key, byName[name])
	}
	s.applied, s.states = applied, states
	s.traffic.Store(&traffic)
	return out, nil
}

// setOf returns the names as a set.
func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// Set loads the connections that differ from those in charon, ends what was negotiated by their
// former content, and begins to negotiate where that is due, in this order: so the first message to a
// peer comes after the end of what that peer has begun, and two nodes that get a configuration at the
// same time cannot end each other's new negotiations. Set does not wait for the result: charon's
// notification has the table list it.
func (s *ikeStore) Set(_ context.Context, entries []ikeEntry) []error {
	errs := make([]error, len(entries))
	if !s.each(entries, errs, s.load) {
		return errs
	}
	if err := s.endReplaced(); err != nil {
		s.fail(errs, err)
		return errs
	}
	s.each(entries, errs, s.negotiate)
	return errs
}

// load loads a connection, unless charon has this content, and notes in replaced what is to end. If charon gives no
// answer to the first load of a run, and the secret is another one at the next, keys of the first secret may stay.
func (s *ikeStore) load(e ikeEntry) error {
	state, known := s.states[e.Key]
	if !known {
		state = &ikeState{since: time.Now()}
		s.states[e.Key] = state
	}
	if before, loaded := s.applied[e.Key]; before != e.Value {
		if err := s.client.Load(connectionOf(e), e.Value.secret); err != nil {
			if refusal, is := errors.AsType[*charon.Refusal](err); loaded && !(is && refusal.Command == "load-conn") {
				s.applied[e.Key] = unknownConn
			}
			return fmt.Errorf("load a connection with the proposal %s: %w", e.Value.proposal, err)
		}
		s.applied[e.Key] = e.Value
		if loaded || state.hasFormer(e) {
			s.replaced[e.Key] = s.replaced[e.Key] || loaded
		}
	}
	isRight := func(p charon.Pair) bool { return !isFormer(e, p) }
	if all, replaced := s.replaced[e.Key]; all || replaced && !slices.ContainsFunc(state.pairs, isRight) { // none will stay
		*state = ikeState{wasUp: true, since: state.since}
	}
	return nil
}

// endReplaced ends what was negotiated by the former content of the connections in replaced: all (true),
// or what hasFormer finds. It also ends what their peers have begun and is of no connection yet, because
// that would be completed with the former encapsulation. What fails is tried again: the next list says that
// these connections differ.
func (s *ikeStore) endReplaced() error {
	if len(s.replaced) == 0 {
		return nil
	}
	if err := s.connect(); err != nil {
		return err
	}
	peers := map[netip.Addr]bool{}
	for key := range s.replaced {
		peers[key.Remote] = true
	}
	err := s.client.Terminate(func(sa charon.SA) bool {
		if sa.Name == "" {
			return peers[sa.Remote.Addr()]
		}
		key, _ := parseIKE(sa.Name)
		all, replaced := s.replaced[key]
		conn, loaded := s.applied[key]
		return replaced && (all || loaded && (&ikeState{pairs: sa.Pairs}).hasFormer(ikeEntry{Key: key, Value: conn}))
	})
	if err == nil {
		clear(s.replaced)
	}
	return err
}

// negotiate begins to negotiate, if that is due.
func (s *ikeStore) negotiate(e ikeEntry) error {
	state := s.states[e.Key] // load has made sure that there is one
	if state.up || !state.due(e.Key) {
		return nil
	}
	state.delay = min(max(2*state.delay, minIKEDelay), maxIKEDelay)
	state.retry = time.Now().Add(state.delay)
	if state.lost {
		err := s.rekey(e.Key, state)
		state.replacing = state.replacing || err == nil
		return err
	}
	return s.client.Initiate(e.Key.String(), childOf(e))
}

// rekey begins to replace the security associations of a connection, which may be those of flannel.
func (s *ikeStore) rekey(key ikeKey, state *ikeState) error {
	children := map[string]bool{}
	for _, p := range state.pairs {
		children[p.Child] = true
	}
	var refused error
	for child := range children {
		err := s.client.Rekey(key.String(), child)
		if _, is := errors.AsType[*charon.Refusal](err); err != nil && !is {
			return err
		}
		refused = errors.Join(refused, err)
	}
	return refused
}

func (s *ikeStore) Delete(_ context.Context, entries []ikeEntry) []error {
	errs := make([]error, len(entries))
	s.each(entries, errs, func(e ikeEntry) error {
		s.replaced[e.Key] = true // also if the connection is wanted again, unless Unload has an answer
		err := s.client.Unload(e.Key.String())
		if err == nil {
			delete(s.applied, e.Key)
			delete(s.states, e.Key)
			delete(s.replaced, e.Key)
		}
		return err
	})
	return errs
}

// each calls do for each entry that has no error yet, and stores its error. A charon.Refusal is the error
// of one entry. With any other, the connection to charon has failed (ok is false): see fail.
func (s *ikeStore) each(entries []ikeEntry, errs []error, do func(ikeEntry) error) (ok bool) {
	for i, e := range entries {
		if errs[i] != nil {
			continue
		}
		if errs[i] = s.connect(); errs[i] == nil {
			errs[i] = do(e)
		}
		if _, refused := errors.AsType[*charon.Refusal](errs[i]); errs[i] != nil && !refused {
			s.fail(errs[i:], errs[i])
			return false
		}
	}
	return true
}

// fail closes the connection to charon after the error err, which all entries without another one get, as
// unknown, because charon may have done what was asked.
func (s *ikeStore) fail(errs []error, err error) {
	s.disconnect()
	for i := range errs {
		if errs[i] == nil || errs[i] == err {
			errs[i] = reconcile.Unknown(err)
		}
	}
}
