// Package kube keeps subnet leases in the Kubernetes API, in flannel's layout: a node's subnet is the podCIDR of its Node,
// which only the cluster sets, and annotations of the Node say how to reach it.
//
// All Nodes are read by follow. It lists whole Nodes at the start, and after the store was restored from a backup, for their
// podCIDRs, which otherwise never change, and keeps a small part of each. Then it watches the Nodes' metadata, for their
// annotations. The podCIDR of a new Node is not in its metadata: lookups read it, from the API server's memory, while the
// watch goes on.
//
// In this package, Node means the object in the API; own marks this node's Node. The store is the API server with etcd
// behind it, and a resourceVersion, with which each change is numbered, is a position in the store.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flannel/pkg/reconcile"
	"flannel/subnet"
	"flannel/subnet/peerset"
)

// Options says how to reach the API server and which node this is. Required are Prefix, NetConf, and either NodeName or
// both PodName and PodNamespace.
type Options struct {
	Kubeconfig string // path; empty: the pod's service account
	APIURL     string // overrides the kubeconfig's server

	NodeName              string
	PodName, PodNamespace string // our pod, whose node is looked up if NodeName is ""

	Prefix       string // of our annotations, such as "flannel.alpha.coreos.com/": the annotation's name follows
	NetConf      string // path of the network configuration
	SetCondition bool   // manage the Node's condition NetworkUnavailable, which the scheduler obeys

	UserAgent string
	Version   string              // of flanneld, which the condition names; "": not named
	Log       *slog.Logger        // nil: no log
	Outage    *subnet.Outage      // shared with the caller, which asks it whether the API server answers; nil: one of its own
	Waiting   func(reason string) // called by PublicIPs and Acquire, on their goroutine, with what they wait for; may be nil

	// Grace is how long this node's network may be incomplete before the condition and an Event say so; 0: a minute.
	Grace time.Duration

	// Retain is how long peers stay in use after a mass withdrawal: the deletion of so many at once that it is taken for a
	// mistake. 0: not at all.
	Retain time.Duration

	wrap func(http.RoundTripper) http.RoundTripper // wraps the transport, below authentication, for Examine and tests; may be nil
}

// Manager implements subnet.Manager, which says what the methods are for and who calls them. Its methods may run
// concurrently; Publish and Hold need an Acquire before them.
type Manager struct {
	o        Options
	api      *apiClient
	log      *slog.Logger
	outage   *subnet.Outage
	reporter *reporter // writes the condition and the Events
	members  members   // chooses the nodes that write Events about a peer

	denials denials         // the requests that the API server denies
	watched peerset.Watched // the peers of Watch, and the Judge that says which leases this node can use
	passing sync.Mutex      // see passOnMissing; locked before mu
	publicIPs

	configMissing atomic.Pointer[error] // see ConfigMissing; nil: there is a configuration, or it is not known yet

	mu   sync.Mutex // never held during a request
	name string     // of our Node; "": not known yet
	own  *ownNode   // nil before Acquire; mu guards its fields, too

	restore chan struct{} // notifies the restorer of Hold that our annotations may differ from what we published
	writing chan struct{} // a lock (a channel, so that waiting for it ends with ctx): it has a value during writeAnnotations
}

// publicIPs is what PublicIPs reads and returns. Manager.mu guards it.
type publicIPs struct {
	found       *storedNode      // our Node as PublicIPs read it, for the next Acquire; nil: Acquire reads it
	operators   [4]string        // the operator's annotations that are in force, see useOperators
	operatorIPs subnet.PublicIPs // the addresses in them
	returnedIPs subnet.PublicIPs // as PublicIPs returned them last
	holding     bool             // Hold runs, and keeps operatorIPs up to date
	warned      warned           // the problems with operatorIPs that were logged

	operatorChanges subnet.Conflict // paces how often changed annotations are put in force

	publicIPsChanged chan struct{} // notifies the caller of PublicIPsChanged
}

var _ subnet.Manager = (*Manager)(nil)

// New checks o and prepares a client; it does not wait for the API server. Its errors are permanent. The goroutine that
// it starts, which reports conditions and Events, ends with ctx.
func New(ctx context.Context, o Options) (*Manager, error) {
	if o.NodeName == "" && (o.PodName == "" || o.PodNamespace == "") {
		return nil, errors.New("name of this node is unknown: set NODE_NAME, or POD_NAME and POD_NAMESPACE")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Grace == 0 {
		o.Grace = time.Minute
	}
	if o.Waiting == nil {
		o.Waiting = func(string) {}
	}
	m := &Manager{o: o, log: o.Log, name: o.NodeName, denials: denials{by: map[string]denial{}}, restore: make(chan struct{}, 1),
		writing:   make(chan struct{}, 1),
		publicIPs: publicIPs{publicIPsChanged: make(chan struct{}, 1)},
		outage:    cmp.Or(o.Outage, subnet.NewOutage(o.Log, "the Kubernetes API"))}
	var err error
	if m.api, err = newClient(o); err != nil {
		return nil, err
	}
	m.reporter = newReporter(m)
	go m.reporter.run(ctx)
	return m, nil
}

// Close closes idle connections. It removes nothing from the API.
func (m *Manager) Close() error {
	m.api.Close()
	return nil
}

// Expires implements subnet.Manager: a lease lasts as long as our Node.
func (*Manager) Expires() (never time.Time) { return never }

// Redial implements subnet.Manager.
func (m *Manager) Redial() { m.api.DropConnections() }

// requestTimeout bounds a request for one object.
const requestTimeout = 15 * time.Second

// retry calls op until it succeeds, ctx ends, or the API server rejects the request as invalid. Only the last two are
// errors: a denied request is repeated, too, as an administrator may grant the permission. activity names what the
// requests are for, in errors, in outages (subnet.Outage) and in denials.
func (m *Manager) retry(ctx context.Context, activity string, op func(context.Context) error) error {
	defer m.outage.Forget(activity) // for the returns with an error; after a success it has no effect
	for failures := 0; ; {
		attemptCtx, cancel := context.WithTimeout(ctx, requestTimeout)
		err := op(attemptCtx)
		cancel()
		switch {
		case err == nil:
			m.succeeded(activity)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", activity, ctx.Err())
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			m.succeeded(activity) // the API server answers, and allows the request
			return fmt.Errorf("%s: %w", activity, err)
		}
		m.recordAndWait(ctx, activity, err, &failures)
	}
}

// succeeded ends the outage and the denial of an activity.
func (m *Manager) succeeded(activity string) {
	m.outage.Over(activity)
	m.denials.mu.Lock()
	defer m.denials.mu.Unlock()
	if m.denials.by[activity].logged {
		m.log.Info("the Kubernetes API allows the request now", "cause", causeGranted, "what", activity)
	}
	delete(m.denials.by, activity)
}

// recordAndWait records the failure of an activity, adds one to failures, the number of failures in a row, and pauses
// before the next attempt. It first waits as long as the API server has asked for, if it has, and then for a time that
// grows with failures.
func (m *Manager) recordAndWait(ctx context.Context, activity string, err error, failures *int) {
	if newlyDenied := m.recordFailure(activity, err); newlyDenied {
		*failures = 0 // try again soon: an API server that starts denies requests until it has read its roles
	}
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked { // by the header Retry-After
		reconcile.Pause(ctx, min(time.Duration(seconds)*time.Second, time.Minute))
	}
	subnet.Pause(ctx, *failures)
	*failures++
}

// recordFailure records an outage or a denial, which are logged once. It reports whether err is a new denial.
func (m *Manager) recordFailure(activity string, err error) (newlyDenied bool) {
	switch {
	case isDenied(err):
		m.outage.Denied(activity, err)
		return m.recordDenial(activity, err, denialGrace)
	case isMissing(err) || errors.Is(err, errNoNode) || errors.Is(err, errNoPod):
		m.outage.Over(activity) // the API server answers; readOwn, findName and Hold log what is missing
	default:
		if apierrors.IsTooManyRequests(err) {
			err = busyError{err}
		}
		m.outage.Failed(activity, err)
		m.forgetDenial(activity)
	}
	return false
}

// busyError is the error of an API server that is too busy for a request.
type busyError struct{ error }

// Unwrap returns the API server's answer.
func (e busyError) Unwrap() error { return e.error }

// Busy marks the type for subnet.Outage.
func (busyError) Busy() {}

// Causes in the log.
const (
	causeDenied            = "access-denied"
	causeGranted           = "access-granted"
	causeStoreOlder        = "store-older"
	causeStoreChanged      = "store-changed" // another or an older one than before
	causeNoNode            = "no-node"       // this node's Node does not exist
	causeNoPodCIDR         = "no-pod-cidr"
	causeNoPod             = "no-pod" // the pod that should name this node does not exist, or has no node
	causeWholeNetwork      = "whole-network"
	causeSubnetChanged     = "subnet-changed"
	causeOverwritten       = "annotations-overwritten"
	causeConflict          = "annotations-conflict"
	causeAnnotationIgnored = "annotation-ignored"
	causeNoConfig          = "no-config"
	causeConfigGone        = "config-gone"
)

// denials are the activities whose requests the API server denies, by their names. All goroutines that send requests
// record them.
type denials struct {
	mu sync.Mutex
	by map[string]denial
}

// denial is a request that the API server does not authenticate or authorize.
type denial struct {
	text   string    // the API server's message, which names the verb and the resource
	since  time.Time // when the API server sent this text first
	logged bool      // then its end is logged, too
}

// denialGrace is how long a denial lasts before it is logged: an API server that starts denies requests for a moment,
// until it has read its roles.
const denialGrace = 5 * time.Second

// recordDenial records that the API server denies an activity, and logs the denial once when it has lasted for
// logAfter. It reports whether the denial is a new one, with another text than the last one of the activity.
func (m *Manager) recordDenial(activity string, err error, logAfter time.Duration) (isNew bool) {
	m.denials.mu.Lock()
	defer m.denials.mu.Unlock()
	d := m.denials.by[activity]
	if text := err.Error(); d.text != text {
		d, isNew = denial{text: text, since: time.Now()}, true
	}
	if !d.logged && time.Since(d.since) >= logAfter {
		d.logged = true
		m.log.Warn("the Kubernetes API denies a request; retrying, and keeping the network as it is",
			"cause", causeDenied, "what", activity, "error", d.text)
	}
	m.denials.by[activity] = d
	return isNew
}

// isDenying reports whether the API server denied an activity, and has not allowed it since.
func (m *Manager) isDenying(activity string) bool {
	m.denials.mu.Lock()
	defer m.denials.mu.Unlock()
	_, denying := m.denials.by[activity]
	return denying
}

// forgetDenial forgets a denial that was not logged yet, after an outage: the API server that comes next may be another
// one, whose first denials do not count either.
func (m *Manager) forgetDenial(activity string) {
	m.denials.mu.Lock()
	defer m.denials.mu.Unlock()
	if !m.denials.by[activity].logged {
		delete(m.denials.by, activity)
	}
}
