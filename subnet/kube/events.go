// This file decides which Events the reporter (report.go) writes, and when. All of it runs on the
// reporter's goroutine.

package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// eventFilter limits the Events that are written: those of one reason to one a minute, and repeated messages to one an
// hour, which is how long the cluster keeps an Event.
type eventFilter struct {
	last            map[string]writtenEvent // by reason
	failureReported bool                    // the last Event about the network's state was reasonNotSynced
	outageReported  bool                    // the last Event about reaching peers was reasonUnreachable
}

// writtenEvent is the last Event of a reason.
type writtenEvent struct {
	message string
	at      time.Time // when it was written
}

const (
	sameInterval = time.Hour   // between two Events of one reason with the same message
	interval     = time.Minute // and with another one
)

// newEventFilter returns a filter that has seen no event.
func newEventFilter() *eventFilter { return &eventFilter{last: map[string]writtenEvent{}} }

// next reports whether an Event may be written now, and if not, how long it must wait.
func (f *eventFilter) next(reason, message string, now time.Time) (write bool, wait time.Duration) {
	last, before := f.last[reason] // before: there was one
	pause := interval
	if last.message == message {
		pause = sameInterval
	}
	if wait = pause - now.Sub(last.at); before && wait > 0 {
		return false, wait
	}
	return true, 0
}

// opposites has the reasons of Events that end what an Event of the other reason has reported.
var opposites = map[string]string{
	reasonUnreachable: reasonReachable, reasonReachable: reasonUnreachable,
	reasonNotSynced: reasonSynced, reasonSynced: reasonNotSynced,
}

// written records an Event that was written. The message of the opposite reason is news after it, even if the message
// is the same as before.
func (f *eventFilter) written(e event, at time.Time) {
	f.last[e.reason] = writtenEvent{e.message, at}
	if last, before := f.last[opposites[e.reason]]; before {
		f.last[opposites[e.reason]] = writtenEvent{at: last.at}
	}
	// Both stay as they are after an Event of another reason.
	f.outageReported = f.outageReported && e.reason != reasonReachable || e.reason == reasonUnreachable
	f.failureReported = f.failureReported && e.reason != reasonSynced || e.reason == reasonNotSynced
}

// writeEvents writes the Events that are due, and returns the time until the next one may be, recheckEvery at most. An
// error means that at least one could not be written. name is that of our Node. What it has written of s.subnetChange
// is removed from the reporter's status.
func (r *reporter) writeEvents(ctx context.Context, f *eventFilter, name string, s status) (rest time.Duration, err error) {
	rest = recheckEvery // as often as run looks at the condition
	for _, e := range f.events(s, r.m.o.Grace, time.Now()) {
		write, wait := f.next(e.reason, e.message, time.Now())
		if !write {
			rest = min(rest, wait)
			continue
		}
		if writeErr := r.writeEvent(ctx, name, e); writeErr != nil {
			if r.recordFailure(ctx, "write Events", writeErr); !isDenied(writeErr) { // denied: no Events, and no retry
				err = writeErr
			}
			continue
		}
		f.written(e, time.Now())
		if e.reason == reasonSubnet { // it happens once, while the other messages last as long as what they are about
			r.mu.Lock()
			if r.status.subnetChange == e.message {
				r.status.subnetChange = ""
			}
			r.mu.Unlock()
		}
	}
	return rest, err
}

// Reasons of Events. Users may depend on them, so some have words that are not used elsewhere any more.
const (
	reasonSubnet      = "FlannelSubnetChanged"
	reasonRejected    = "FlannelPeersLeftOut"
	reasonRetain      = "FlannelPeersRetained"
	reasonMixed       = "FlannelMixedCluster"
	reasonUnreachable = "FlannelPeersUnreachable"
	reasonReachable   = "FlannelPeersReachable"
	reasonPending     = "FlannelConfigurationPending"
	reasonLostPods    = "FlannelPodsLostNetwork"
	reasonNotSynced   = "FlannelNotInStep"
	reasonSynced      = "FlannelInStep"
)

// event is an Event; kind is its type, Normal or Warning.
type event struct{ kind, reason, message string }

// events returns the Events that describe the status, due or not. grace is how long the network must not be synced
// before one says so.
func (f *eventFilter) events(s status, grace time.Duration, now time.Time) []event {
	var events []event
	for _, e := range []event{
		{corev1.EventTypeWarning, reasonSubnet, s.subnetChange},
		{corev1.EventTypeWarning, reasonRejected, s.rejected},
		{corev1.EventTypeWarning, reasonUnreachable, s.unreachable},
		{corev1.EventTypeWarning, reasonLostPods, s.lostPods},
		{corev1.EventTypeWarning, reasonRetain, s.retained},
		{corev1.EventTypeWarning, reasonMixed, s.advice}, // the only advice is about Windows nodes
		{corev1.EventTypeWarning, reasonPending, s.pendingConfig},
	} {
		if e.message != "" {
			events = append(events, e)
		}
	}
	if s.unreachable == "" && f.outageReported {
		events = append(events, event{corev1.EventTypeNormal, reasonReachable, "the nodes that an Event named as not reached are reached again, or do not exist any more"})
	}
	switch {
	case s.since.IsZero(): // Report was not called yet
	case s.synced && f.failureReported:
		events = append(events, event{corev1.EventTypeNormal, reasonSynced, "the pod network of this node is synced again"})
	case !s.synced && now.Sub(s.since) >= grace:
		events = append(events, event{corev1.EventTypeWarning, reasonNotSynced,
			"the pod network of this node cannot be set up: " + s.problem})
	}
	return events
}

// writeEvent writes an Event about our Node, which has this name. It is errNoNode if the Node does not exist.
func (r *reporter) writeEvent(ctx context.Context, name string, o event) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	uid, _ := r.m.ownUID()
	if uid == "" {
		return errNoNode
	}
	now := metav1.Now()
	err := r.m.api.CreateEvent(ctx, &corev1.Event{
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
