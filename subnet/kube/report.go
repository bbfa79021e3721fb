package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/subnet"
	"flannel/subnet/kube/client"
)

// teller tells the cluster how this node's network is: by the condition NetworkUnavailable, on which the scheduler
// acts, and by Events for a person. It is a task of its own: an outage must not keep the node from anything.
type teller struct {
	m    *Manager
	news chan struct{}

	mu     sync.Mutex
	status status
}

// status is what is to be told.
type status struct {
	inStep  bool
	problem string    // "" before the first report, and while in step
	since   time.Time // of being in step or not; zero before the first report
	leftOut string    // the peers that are
	advice  string    // what to change although all is in step
	moved   string    // from what subnet to what
	retains string    // the peers that are retained
	again   bool      // the Node may not have the condition that we gave it
}

func newTeller(m *Manager) *teller { return &teller{m: m, news: make(chan struct{}, 1)} }

// Report takes the outcome of a pass; see subnet.Reporter.
func (m *Manager) Report(problem error, rejects []subnet.Rejected, advice string) {
	m.teller.report(problem, rejects, advice, time.Now())
}

func (t *teller) report(problem error, rejects []subnet.Rejected, advice string, now time.Time) {
	// Before the lock: who changes our Node has the Manager's lock when it takes this one.
	ours := leftOut(t.m.members.share(t.m.ownName(), rejects))
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.status
	s := &t.status
	s.problem = ""
	if problem != nil {
		s.problem = clip(problem.Error())
	}
	if s.inStep = problem == nil; s.since.IsZero() || s.inStep != was.inStep {
		s.since = now
	}
	if s.leftOut, s.advice = ours, clip(advice); *s != was {
		token(t.news)
	}
}

func (t *teller) moved(from, to string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.moved = fmt.Sprintf("the pod subnet of this node is %s now, no longer %s; pods that have addresses of the former one must be made anew", to, from)
	token(t.news)
}

// retaining takes the peers that are retained, on every node the same. The first writers by name write an Event about
// them, whether they are withdrawn themselves or not.
func (t *teller) retaining(own string, set subnet.Set) {
	text := ""
	if count := len(set.Retained); count > 0 && earlier(set.Leases, own) < writers {
		text = fmt.Sprintf("%d nodes left the cluster together and stay in the pod network until %s, unless they come back; flanneld accept-withdrawal on a node lets them go there",
			count, set.Retained[0].Until.UTC().Format(time.RFC3339))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status.retains != text {
		t.status.retains = text
		token(t.news)
	}
}

// earlier counts the leases whose names come before ours.
func earlier(leases []*subnet.Lease, own string) (count int) {
	for _, l := range leases {
		if l.Name < own {
			count++
		}
	}
	return count
}

// known says that there is a Node, maybe another than before.
func (t *teller) known() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.again = true
	token(t.news)
}

// clip bounds what goes into a condition or an event, in bytes; both take no more than some thousand. It cuts between
// characters.
func clip(s string) string {
	if len(s) > 500 {
		return strings.ToValidUTF8(s[:497], "") + "…"
	}
	return s
}

// leftOut is the message about peers that are left out, "" if there are none. There may be more, about which others write.
func leftOut(rejects []subnet.Rejected) string {
	if len(rejects) == 0 {
		return ""
	}
	text := fmt.Sprintf("at least %d nodes are left out of the pod network: ", len(rejects))
	if len(rejects) == 1 {
		text = "a node is left out of the pod network: "
	}
	for i, r := range rejects[:min(len(rejects), 3)] {
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%.80s (%.120s)", r.Name, r.Reason)
	}
	return clip(text)
}

const (
	// look is how often the condition is compared with what it shall be, without a reason.
	look = 15 * time.Minute
	// tryAgain is the pause after something could not be told.
	tryAgain = 5 * time.Second
)

// run tells what there is to tell until ctx ends.
func (t *teller) run(ctx context.Context) {
	events := newAnnouncer()
	var told *corev1.NodeCondition // what our Node has
	for {
		t.mu.Lock()
		s := t.status
		t.status.again = false
		t.mu.Unlock()
		name := t.m.ownName()
		wait := look
		if s.again {
			told = nil
		}
		if want, due := condition(s, t.m.o.Grace, time.Now()); name == "" || s.since.IsZero() {
			// There is no Node to tell anything of, or nothing to tell.
		} else if due > 0 {
			wait = min(wait, due)
		} else if t.m.o.SetCondition && (told == nil || !alike(*told, *want)) {
			if err := t.setCondition(ctx, name, *want); err != nil {
				t.tell(ctx, "set the condition NetworkUnavailable", err)
				wait = tryAgain
			} else {
				told = want
				t.m.through("set the condition NetworkUnavailable")
			}
		}
		if name != "" {
			wait = min(wait, t.announce(ctx, events, name, s))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.news:
		case <-timer.C:
			if wait == look {
				told = nil
			}
		}
		timer.Stop()
	}
}

// tell says that the cluster could not be told: what it refuses, once; an outage is told by others.
func (t *teller) tell(ctx context.Context, what string, err error) {
	if client.IsDenied(err) {
		t.m.refuse(what, err, 0)
	} else if ctx.Err() == nil {
		t.m.log.Debug("cannot tell the cluster", "what", what, "error", err)
	}
}

// condition is what the Node's shall be, or how long it is too early to say.
func condition(s status, grace time.Duration, now time.Time) (want *corev1.NodeCondition, early time.Duration) {
	if s.inStep {
		return &corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
			Reason: "FlannelIsUp", Message: "Flannel is running on this node"}, 0
	}
	if early = grace - now.Sub(s.since); early > 0 {
		return nil, early
	}
	return &corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue,
		Reason: "FlannelIsNotInStep", Message: s.problem}, 0
}

func alike(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// setCondition writes the condition if the Node has another one.
func (t *teller) setCondition(ctx context.Context, name string, want corev1.NodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, version := t.m.ownNode()
	conditions, err := t.m.api.Conditions(ctx, name, version)
	if err != nil {
		return fmt.Errorf("get nodes %s: %w", name, err)
	}
	want.LastHeartbeatTime = metav1.Now()
	want.LastTransitionTime = want.LastHeartbeatTime
	for _, c := range conditions {
		if c.Type != want.Type {
			continue
		}
		if alike(c, want) {
			return nil
		}
		if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
		}
	}
	raw, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	now, err := t.m.api.PatchStatus(ctx, name, raw)
	if err != nil {
		return fmt.Errorf("patch nodes/status %s: %w", name, err)
	}
	t.m.patched(now)
	t.m.log.Info("set the condition NetworkUnavailable", "status", want.Status, "message", want.Message)
	return nil
}
