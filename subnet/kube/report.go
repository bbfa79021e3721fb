package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/subnet"
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
	moved   string    // from what subnet to what
	again   bool      // the Node may not have the condition that we gave it
}

func newTeller(m *Manager) *teller { return &teller{m: m, news: make(chan struct{}, 1)} }

// Report takes the outcome of a pass; see subnet.Reporter.
func (m *Manager) Report(problem error, rejects []subnet.Rejected) {
	m.teller.report(problem, rejects, time.Now())
}

func (t *teller) report(problem error, rejects []subnet.Rejected, now time.Time) {
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
	if s.leftOut = leftOut(rejects); *s != was {
		token(t.news)
	}
}

func (t *teller) moved(from, to string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.moved = fmt.Sprintf("the pod subnet of this node is %s now, no longer %s; pods that have addresses of the former one must be made anew", to, from)
	token(t.news)
}

// known says that there is a Node, maybe another than before.
func (t *teller) known() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.again = true
	token(t.news)
}

// clip bounds what goes into a condition or an event, in bytes; both take no more than some thousand.
func clip(s string) string {
	if len(s) > 500 {
		return s[:497] + "…"
	}
	return s
}

// leftOut is the message about peers that are left out, "" if there are none.
func leftOut(rejects []subnet.Rejected) string {
	if len(rejects) == 0 {
		return ""
	}
	text := fmt.Sprintf("%d nodes are left out of the pod network: ", len(rejects))
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
	if refused(err) {
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
	_, conditions, err := t.m.conditions(ctx, name)
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
	if _, err := t.m.patchStatus(ctx, name, raw); err != nil {
		return fmt.Errorf("patch nodes/status %s: %w", name, err)
	}
	t.m.log.Info("set the condition NetworkUnavailable", "status", want.Status, "message", want.Message)
	return nil
}

// announcer decides which Events are worth one: the same not twice within the hour that the cluster keeps it, and of
// one kind no more than one a minute.
type announcer struct {
	last map[string]announced // by reason
	down bool                 // it was told that the network is not in step
}

type announced struct {
	message string
	at      time.Time
}

const (
	sameAgain  = time.Hour
	otherAgain = time.Minute
)

func newAnnouncer() *announcer { return &announcer{last: map[string]announced{}} }

// next tells whether an Event is to be written now, or how long it must wait.
func (a *announcer) next(reason, message string, now time.Time) (write bool, wait time.Duration) {
	last, before := a.last[reason]
	pause := otherAgain
	if last.message == message {
		pause = sameAgain
	}
	if wait = pause - now.Sub(last.at); before && wait > 0 {
		return false, wait
	}
	return true, 0
}

// announce writes the Events that are due, and returns how long it can rest.
func (t *teller) announce(ctx context.Context, a *announcer, name string, s status) (rest time.Duration) {
	rest = look
	for _, e := range a.events(s, t.m.o.Grace, time.Now()) {
		write, wait := a.next(e.reason, e.message, time.Now())
		if !write {
			rest = min(rest, wait)
			continue
		}
		if err := t.writeEvent(ctx, name, e); err != nil {
			if t.tell(ctx, "write Events", err); refused(err) {
				continue // it is a service; whoever wants it allows it
			}
			rest = min(rest, tryAgain)
			continue
		}
		a.last[e.reason] = announced{e.message, time.Now()}
		if e.reason == reasonMoved {
			t.mu.Lock()
			if t.status.moved == e.message {
				t.status.moved = ""
			}
			t.mu.Unlock()
		}
		a.down = a.down && e.reason != reasonUp || e.reason == reasonDown
	}
	return rest
}

const (
	reasonMoved   = "FlannelSubnetChanged"
	reasonLeftOut = "FlannelPeersLeftOut"
	reasonDown    = "FlannelNotInStep"
	reasonUp      = "FlannelInStep"
)

type occasion struct{ kind, reason, message string }

// events are those that the status calls for.
func (a *announcer) events(s status, grace time.Duration, now time.Time) []occasion {
	var all []occasion
	if s.moved != "" {
		all = append(all, occasion{corev1.EventTypeWarning, reasonMoved, s.moved})
	}
	if s.leftOut != "" {
		all = append(all, occasion{corev1.EventTypeWarning, reasonLeftOut, s.leftOut})
	}
	switch {
	case s.since.IsZero():
	case s.inStep && a.down:
		all = append(all, occasion{corev1.EventTypeNormal, reasonUp, "the pod network of this node is in step again"})
	case !s.inStep && now.Sub(s.since) >= grace:
		all = append(all, occasion{corev1.EventTypeWarning, reasonDown, "the pod network of this node cannot be set up: " + s.problem})
	}
	return all
}

func (t *teller) writeEvent(ctx context.Context, name string, o occasion) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	uid, _, err := t.m.conditions(ctx, name)
	if err != nil {
		return fmt.Errorf("get nodes %s: %w", name, err)
	}
	now := metav1.Now()
	err = t.m.createEvent(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: uid},
		Reason:         o.reason, Message: clip(o.message), Type: o.kind, Count: 1,
		Source:         corev1.EventSource{Component: "flanneld", Host: name},
		FirstTimestamp: now, LastTimestamp: now,
	})
	if err != nil {
		return fmt.Errorf("create events: %w", err)
	}
	return nil
}
