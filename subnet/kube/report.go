package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// reporter reports the state of this node's network to the cluster: by the condition NetworkUnavailable, which the
// scheduler obeys, and by Events, which people read. It writes in a goroutine of its own (run), so that an outage of
// the API server delays nothing else. The daemon's loop, the probes and the watches only set status, and wake run. What
// of the status becomes an Event, and when, is decided in events.go.
type reporter struct {
	m       *Manager
	changed chan struct{} // notifies run of a change of status

	// Only the goroutine of run uses these.
	written  *corev1.NodeCondition // the condition on our Node; nil: unknown, so that it is read and compared
	compared time.Time             // when that on the Node was last compared or written; zero: never

	mu     sync.Mutex // may be locked with Manager.mu held, so Manager.mu is never locked with this one held
	status status     // mu guards it
}

// status is what the reporter has to report. The texts are messages of Events, clipped; "" means that there is nothing
// to say. Two of them are compared to find out whether anything changed.
type status struct {
	synced  bool      // the last report had no problem
	since   time.Time // when synced changed last; zero: before the first report
	problem string    // why the network is not synced; the message of the condition, too
	recheck bool      // the Node may lack the condition that we wrote, since it may be another one

	rejected, unreachable string // peers that this node ignores or cannot reach, if this node writes about them: see members
	retained              string // peers whose leases the store has lost, and that stay for a while, see peersRetained
	subnetChange          string // this node got another subnet; emptied when the Event is written
	lostPods              string // running pods of this node without network, on Windows
	advice                string // what the operator should change although the network is synced
	pendingConfig         string // why the latest network configuration is not in force
}

// newReporter returns the reporter of a manager, whose run writes to the API.
func newReporter(m *Manager) *reporter { return &reporter{m: m, changed: make(chan struct{}, 1)} }

// Report implements subnet.Manager. The loop calls it after each pass (one comparison of everything), and joining does
// before there are passes.
func (m *Manager) Report(report subnet.Report) {
	// Before r.mu is locked, because ownName locks Manager.mu. share takes the peers about which this node writes.
	rejected := rejectMessage(m.members.share(m.ownName(), report.Rejects))
	r := m.reporter
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.status
	s := &r.status
	s.setProblem(report.Problem)
	s.rejected, s.lostPods = rejected, lostPodsMessage(report.LostPods)
	s.advice, s.pendingConfig = clip(report.Advice), clip(report.PendingConfig)
	if *s != before {
		reconcile.Notify(r.changed)
	}
}

// waiting reports what PublicIPs or Acquire wait for, which call it. The rest of the status stays.
func (r *reporter) waiting(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.status
	if r.status.setProblem(errors.New(reason)); r.status != before {
		reconcile.Notify(r.changed)
	}
}

// setProblem records why the network is not synced; nil: it is.
func (s *status) setProblem(problem error) {
	synced := problem == nil
	if s.since.IsZero() || s.synced != synced {
		s.since = time.Now()
	}
	s.synced, s.problem = synced, ""
	if !synced {
		s.problem = clip(problem.Error())
	}
}

// ReportUnreachable implements subnet.Manager. The goroutine of the probes calls it.
func (m *Manager) ReportUnreachable(peers []string) {
	text := unreachableMessage(m.members.shareOf(m.ownName(), peers)) // before r.mu is locked, as in Report
	r := m.reporter
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.unreachable != text {
		r.status.unreachable = text
		reconcile.Notify(r.changed)
	}
}

// subnetChanged records that our Node got another podCIDR. Acquire calls it.
func (r *reporter) subnetChanged(from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.subnetChange = fmt.Sprintf("the pod subnet of this node changed from %s to %s; pods with an address of the former subnet must be recreated", from, to)
	reconcile.Notify(r.changed)
}

// peersRetained records the peers that are retained: the store has lost so many leases at once that they stay in use for
// a while. They are the same on every node, so only the first nodes by name (see writers) write an Event about them: own
// is our name, and set has the others, the retained ones too. Names of retained leases do not count, as a node without
// its Node writes no Event, nor do those of leases that this node rejects, as there may be no node. The goroutine that
// hands over the set calls it, with the lock of the peerset.Keeper.
func (r *reporter) peersRetained(own string, set subnet.Set) {
	text := ""
	if count := len(set.Retained); count > 0 {
		retained, earlier := make(map[string]bool, count), 0
		for _, l := range set.Retained {
			retained[l.Lease.Name] = true
		}
		for _, l := range set.Leases {
			if earlier < writers && l.Name < own && !retained[l.Name] && r.m.watched.Judge().Check(l) == nil {
				earlier++
			}
		}
		if earlier < writers {
			text = fmt.Sprintf("%d nodes left the cluster at once and are retained as peers until %s, unless they return; flanneld accept-withdrawal on a node removes them there",
				count, set.Retained[0].Until.UTC().Format(time.RFC3339))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.retained != text {
		r.status.retained = text
		reconcile.Notify(r.changed)
	}
}

// nodeChanged makes run read and compare the condition, because the Node may be another one. Acquire and Hold call it,
// Hold with Manager.mu held.
func (r *reporter) nodeChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.recheck = true
	reconcile.Notify(r.changed)
}

// clip shortens the message of a condition or an Event to 500 bytes; the API allows some thousand. It cuts between
// characters.
func clip(s string) string {
	if len(s) > 500 {
		return strings.ToValidUTF8(s[:497], "") + "…" // which has 3 bytes
	}
	return s
}

// rejectMessage is the message about the rejected peers about which this node writes, "" if there are none. Other nodes
// may write about further ones, hence "at least".
func rejectMessage(rejects []subnet.Rejected) string {
	if len(rejects) == 0 {
		return ""
	}
	text := fmt.Sprintf("at least %d nodes are rejected as peers: ", len(rejects))
	if len(rejects) == 1 {
		text = "a node is rejected as a peer: "
	}
	for i, r := range rejects[:min(len(rejects), 3)] {
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%.80s (%.120s)", r.Name, r.Reason)
	}
	return clip(text)
}

// unreachableMessage is the message about peers that this node does not reach, "" if there are none.
func unreachableMessage(peers []string) string {
	switch len(peers) {
	case 0:
		return ""
	case 1:
		return clip(fmt.Sprintf("the node %.80s is not reached through the pod network, or does not forward; flanneld doctor looks for the cause", peers[0]))
	}
	named := strings.Join(peers[:min(len(peers), 5)], ", ")
	return clip(fmt.Sprintf("at least %d nodes are not reached through the pod network, or do not forward: %.400s; flanneld doctor looks for the cause", len(peers), named))
}

// lostPodsMessage is the message about pods of this node without network, "" if there are none.
func lostPodsMessage(pods []string) string {
	if len(pods) == 0 {
		return ""
	}
	return clip(fmt.Sprintf("HNS has lost the endpoints of %d running pods, which have no network: delete these pods, and restart kube-proxy on this node. They are %s", len(pods), strings.Join(pods, ", ")))
}

const (
	// recheckEvery is how often the condition is read and compared although the status is the same: another program may
	// have changed it.
	recheckEvery = 15 * time.Minute
	// retryPause is the pause after a failed write, on average.
	retryPause = 5 * time.Second
)

// run writes the condition and the Events until ctx ends: when status changes, when an Event or a problem that was too
// early is due, and otherwise every recheckEvery. After a failure it tries again after retryPause.
func (r *reporter) run(ctx context.Context) {
	events := newEventFilter()
	loop := reconcile.Runner{
		News:   []<-chan struct{}{r.changed},
		Resync: recheckEvery,
		Retry:  reconcile.Backoff{First: retryPause, Jitter: true},
		Work: func(ctx context.Context) (time.Duration, error) {
			r.mu.Lock()
			s := r.status
			r.status.recheck = false
			r.mu.Unlock()
			if s.recheck || time.Since(r.compared) >= recheckEvery {
				r.written = nil
			}
			name := r.m.ownName()
			if name == "" { // not known yet; Acquire calls nodeChanged when it is
				return 0, nil
			}
			early, err := r.writeCondition(ctx, name, s)
			nextEvent, eventErr := r.writeEvents(ctx, events, name, s) // also if the condition could not be written
			// After an error, the next call comes after retryPause instead. Both parts have logged their errors.
			return min(cmp.Or(early, recheckEvery), nextEvent), errors.Join(err, eventErr)
		},
	}
	loop.Run(ctx)
}

// writeCondition writes the condition if it differs from the one that was written last. It returns for how long it is too
// early to report a problem (Options.Grace); 0: it is not. name is that of our Node.
func (r *reporter) writeCondition(ctx context.Context, name string, s status) (early time.Duration, err error) {
	want, early := condition(s, r.m.o, time.Now())
	switch {
	case s.since.IsZero(): // Report was not called yet
		return 0, nil
	case early > 0: // want is nil
		return early, nil
	case !r.m.o.SetCondition || r.written != nil && sameCondition(*r.written, *want):
		return 0, nil
	}
	const activity = "set the condition NetworkUnavailable"
	if err := r.setCondition(ctx, name, *want); err != nil {
		r.recordFailure(ctx, activity, err)
		return 0, err
	}
	r.written, r.compared = want, time.Now()
	r.m.succeeded(activity)
	return 0, nil
}

// recordFailure logs that a write failed: a denial as a warning, once and at once (0: without denialGrace). Of an outage
// the watches learn, too, and they log it.
func (r *reporter) recordFailure(ctx context.Context, what string, err error) {
	if isDenied(err) {
		r.m.recordDenial(what, err, 0)
	} else if ctx.Err() == nil {
		r.m.log.Debug("cannot report to the cluster", "what", what, "error", err)
	}
}

// Reasons of the condition. flannel has the first one, too.
const (
	reasonUp    = "FlannelIsUp"
	reasonNotUp = "FlannelIsNotInStep"
)

// condition returns the condition that the Node should have, or nil and for how long it is too early to report a
// problem.
func condition(s status, o Options, now time.Time) (want *corev1.NodeCondition, early time.Duration) {
	if s.synced {
		return &corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
			Reason: reasonUp, Message: withVersion("Flannel is running on this node", o.Version)}, 0
	}
	if early = o.Grace - now.Sub(s.since); early > 0 {
		return nil, early
	}
	return &corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue,
		Reason: reasonNotUp, Message: withVersion(s.problem, o.Version)}, 0
}

// The message of the condition is where a Node says which flanneld it has. An annotation would not do: the admission
// policy of earlier manifests refuses a patch with one that it does not know, and a flannel that takes the node over
// would leave it as it is, whereas it replaces the message by its own.
const versionStart, versionEnd = " (flanneld ", ")"

// withVersion appends flanneld's version to the message of the condition.
func withVersion(message, version string) string {
	if version == "" {
		return message
	}
	return message + versionStart + version + versionEnd
}

// cutVersion is the inverse of withVersion. The version is "" if the message has none, such as flannel's.
func cutVersion(message string) (rest, version string) {
	i := strings.LastIndex(message, versionStart)
	if i < 0 || !strings.HasSuffix(message, versionEnd) {
		return message, ""
	}
	version = strings.TrimSuffix(message[i+len(versionStart):], versionEnd)
	if strings.ContainsAny(version, " ()") {
		return message, ""
	}
	return message[:i], version
}

// sameCondition compares what we write of a condition, without its type and times.
func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// setCondition writes the condition if that of the Node differs.
func (r *reporter) setCondition(ctx context.Context, name string, want corev1.NodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, version := r.m.ownUID() // "" while the Node does not exist, which is read from etcd
	conditions, err := r.m.api.Conditions(ctx, name, version)
	if err != nil {
		return fmt.Errorf("get nodes %s: %w", name, err)
	}
	want.LastHeartbeatTime = metav1.Now()
	want.LastTransitionTime = want.LastHeartbeatTime
	for _, c := range conditions {
		if c.Type != want.Type {
			continue
		}
		if sameCondition(c, want) {
			return nil
		}
		if c.Status == want.Status { // by convention, only a change of the status is a transition
			want.LastTransitionTime = c.LastTransitionTime
		}
	}
	raw, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	patched, err := r.m.api.PatchStatus(ctx, name, raw)
	if err != nil {
		return fmt.Errorf("patch nodes/status %s: %w", name, err)
	}
	r.m.observePatched(patched)
	r.m.log.Info("set the condition NetworkUnavailable", "status", want.Status, "message", want.Message)
	return nil
}
