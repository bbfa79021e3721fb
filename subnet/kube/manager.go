// Package kube keeps subnet leases in the Kubernetes API, in flannel's layout: a node's subnet is its podCIDR, which
// only the cluster itself sets, and how to reach it stands in annotations of its Node.
//
// Everything that is read is read by one means (follow): a list of whole Nodes, trimmed as it arrives, for the
// podCIDRs, which never change; then a watch that carries nothing but metadata, for the annotations. The podCIDR of a
// new Node is looked up beside the watch (lookups), and from the API server's memory.
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

	"flannel/subnet"
	"flannel/subnet/kube/client"
	"flannel/subnet/kube/format"
	"flannel/subnet/patience"
	"flannel/subnet/peerset"
)

// Options says how to reach the API server and which node this is. Prefix and NetConf are required, and NodeName or
// else PodName and PodNamespace.
type Options struct {
	Kubeconfig string // path; empty: the pod's service account
	APIURL     string // counts for more than the kubeconfig's

	NodeName              string
	PodName, PodNamespace string // the pod is asked for its node's name

	Prefix       string // of annotations, complete: the name follows
	NetConf      string // path of the network configuration
	SetCondition bool   // NetworkUnavailable

	UserAgent string
	Log       *slog.Logger        // nil: silence
	Outage    *patience.Outage    // to be told whether the API server answers; nil: nobody else wants to know
	Waiting   func(reason string) // is told what Acquire waits for; may be nil

	// Grace is how long this node may be out of step before the scheduler and the operator are to know; 0 is a minute.
	Grace time.Duration

	Retain time.Duration // how long peers stay that a mass withdrawal takes away; 0: not at all

	wrap func(http.RoundTripper) http.RoundTripper // for tests, which count
}

// client returns the options that say how to reach the API server.
func (o Options) client() client.Options {
	return client.Options{Kubeconfig: o.Kubeconfig, APIURL: o.APIURL, UserAgent: o.UserAgent, Prefix: o.Prefix, Wrap: o.wrap}
}

// Manager implements subnet.Manager, subnet.Reporter and subnet.Redialer. Its methods may run side by side; Publish and
// Hold need an Acquire before them.
type Manager struct {
	o       Options
	api     *client.Client
	log     *slog.Logger
	outage  *patience.Outage
	teller  *teller
	members members

	watched atomic.Pointer[peerset.Keeper] // the peers, nil before Watch

	mu    sync.Mutex
	name  string       // of our Node, once it is known
	claim *claim       // nil before Acquire; its fields are guarded by mu, too
	found *format.Node // our Node as PublicIPs read it, for the Acquire that follows; nil: read it

	operator subnet.PublicIPs // as our Node said last
	holding  bool             // from Acquire to the end of Hold, which keeps operator up to date
	warned   map[string]bool  // problems with operator

	refusing sync.Mutex         // not mu, which is held while our annotations are written
	refusals map[string]refusal // by activity

	mend      chan struct{} // a token for Hold: our annotations may not be what they shall be
	addressed chan struct{} // a token for whoever follows the operator's PublicIPs
}

var (
	_ subnet.Manager  = (*Manager)(nil)
	_ subnet.Reporter = (*Manager)(nil)
	_ subnet.Redialer = (*Manager)(nil)
	_ subnet.Accepter = (*Manager)(nil)

	_ subnet.Addresser = (*Manager)(nil)
)

// New checks o and prepares a client; it does not wait for the API server. Its errors are those that waiting cannot
// mend. What it starts ends with ctx.
func New(ctx context.Context, o Options) (*Manager, error) {
	if o.NodeName == "" && (o.PodName == "" || o.PodNamespace == "") {
		return nil, errors.New("which node is this? Set the variable NODE_NAME, or POD_NAME and POD_NAMESPACE")
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
	m := &Manager{o: o, log: o.Log, name: o.NodeName, refusals: map[string]refusal{}, mend: make(chan struct{}, 1),
		warned: map[string]bool{}, addressed: make(chan struct{}, 1),
		outage: cmp.Or(o.Outage, patience.NewOutage(o.Log, "the Kubernetes API"))}
	var err error
	if m.api, err = client.New(o.client()); err != nil {
		return nil, err
	}
	m.teller = newTeller(m)
	go m.teller.run(ctx)
	return m, nil
}

// Close ends the connections that nobody uses. Nothing is taken out of the store.
func (m *Manager) Close() error {
	m.api.Close()
	return nil
}

// Redial implements subnet.Redialer.
func (m *Manager) Redial() { m.api.DropConnections() }

// token leaves a note in a channel of capacity one; a note that lies there already will do.
func token(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// attempt bounds a request for one object.
const attempt = 15 * time.Second

// retry calls op until it succeeds, ctx ends, or the API server says that it never will.
func (m *Manager) retry(ctx context.Context, activity string, op func(context.Context) error) error {
	defer m.outage.Forget(activity)
	for pause := (patience.Backoff{}); ; {
		one, cancel := context.WithTimeout(ctx, attempt)
		err := op(one)
		cancel()
		switch {
		case err == nil:
			m.through(activity)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", activity, ctx.Err())
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			m.through(activity)
			return fmt.Errorf("%s: %w", activity, err)
		}
		m.failed(ctx, activity, err, &pause)
	}
}

// through says that an activity got through.
func (m *Manager) through(activity string) {
	m.outage.Over(activity)
	m.refusing.Lock()
	defer m.refusing.Unlock()
	if m.refusals[activity].said {
		m.log.Info("the Kubernetes API allows it now", "cause", causeGranted, "what", activity)
	}
	delete(m.refusals, activity)
}

// failed tells what went wrong, once, and pauses before the next try.
func (m *Manager) failed(ctx context.Context, activity string, err error, pause *patience.Backoff) {
	if m.blame(activity, err) {
		*pause = patience.Backoff{} // it may be about to learn its roles, however long it was away
	}
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		patience.Pause(ctx, min(time.Duration(seconds)*time.Second, time.Minute))
	}
	pause.Wait(ctx)
}

// blame tells what went wrong, once. It reports whether the API server began to refuse it.
func (m *Manager) blame(activity string, err error) (refusal bool) {
	switch {
	case client.IsDenied(err):
		m.outage.Over(activity) // it does answer
		return m.refuse(activity, err, settling)
	case apierrors.IsNotFound(err) || errors.Is(err, errNoNode):
		m.outage.Over(activity) // whoever follows that object says so
	default:
		m.outage.Failed(activity, err)
		m.unsettle(activity)
	}
	return false
}

// Causes in the log.
const (
	causeDenied            = "access-denied"
	causeGranted           = "access-granted"
	causeStoreOlder        = "store-older"
	causeStoreChanged      = "store-changed" // another or an older one than before
	causeNoNode            = "no-node"       // this node's
	causeNoPodCIDR         = "no-pod-cidr"
	causeWholeNetwork      = "whole-network"
	causeSubnetChanged     = "subnet-changed"
	causeOverwritten       = "annotations-overwritten"
	causeConflict          = "annotations-conflict"
	causeAnnotationIgnored = "annotation-ignored"
	causeNoConfig          = "no-config"
	causeConfigGone        = "config-gone"
)

// refusal is what the API server does not let us do.
type refusal struct {
	text  string
	since time.Time
	said  bool
}

// settling is how long a refusal lasts before it is said: an API server that starts knows no roles at first.
const settling = 5 * time.Second

// refuse tells once what the API server does not let us do; its own words name the verb and the resource. It returns
// whether the refusal is new.
func (m *Manager) refuse(activity string, err error, after time.Duration) (fresh bool) {
	m.refusing.Lock()
	defer m.refusing.Unlock()
	r := m.refusals[activity]
	if text := err.Error(); r.text != text {
		r, fresh = refusal{text: text, since: time.Now()}, true
	}
	if !r.said && time.Since(r.since) >= after {
		r.said = true
		m.log.Warn("the Kubernetes API refuses it: waiting until it is allowed, the network stays as it is",
			"cause", causeDenied, "what", activity, "error", r.text)
	}
	m.refusals[activity] = r
	return fresh
}

// unsettle forgets a refusal that was not said yet: the server that gave it is gone, and the next one starts afresh.
func (m *Manager) unsettle(activity string) {
	m.refusing.Lock()
	defer m.refusing.Unlock()
	if !m.refusals[activity].said {
		delete(m.refusals, activity)
	}
}
