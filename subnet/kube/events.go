package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/subnet/kube/client"
)

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
			if t.tell(ctx, "write Events", err); client.IsDenied(err) {
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
	reasonRetain  = "FlannelPeersRetained"
	reasonAdvice  = "FlannelMixedCluster"
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
	if s.retains != "" {
		all = append(all, occasion{corev1.EventTypeWarning, reasonRetain, s.retains})
	}
	if s.advice != "" {
		all = append(all, occasion{corev1.EventTypeWarning, reasonAdvice, s.advice})
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
	uid, _ := t.m.ownNode()
	if uid == "" {
		return errNoNode
	}
	now := metav1.Now()
	err := t.m.api.CreateEvent(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(uid)},
		Reason:         o.reason, Message: clip(o.message), Type: o.kind, Count: 1,
		Source:         corev1.EventSource{Component: "flanneld", Host: name},
		FirstTimestamp: now, LastTimestamp: now,
	})
	if err != nil {
		return fmt.Errorf("create events: %w", err)
	}
	return nil
}
