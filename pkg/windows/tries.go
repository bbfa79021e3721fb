package windows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// tries spaces the changes that HNS, or Windows, refuses. A try may bind and then free a switch,
// and each time the host loses its addresses for seconds; and HNS becomes unstable
// under pressure (moby#33880, K2s#977). Passes come every half second while the
// driver waits for something, so not every pass may try.
//
// Example: HNS refuses to create the network flannel.4096.
//
//	0 s      try calls HNS, which refuses; the next try is in 5 s
//	0.5 s    try returns that error without a call
//	5 s      HNS refuses again; the next try is in 10 s, then in 20 s, up to 10 min
//	7 s      the configuration has another subnet: another change, which is tried at once
//
// Only the goroutine of the loop, or of a command, uses it.
type tries struct {
	pace    *pace                         // its Refused and MaxRefused
	refused map[change]*reconcile.Backoff // the last error of each change, and when it is due again
}

// change is what is asked of HNS: a verb and the text of all that the request
// holds.
type change struct{ verb, request string }

// changeOf returns the identity of a change: the same request has the same.
func changeOf(verb string, request any) change { return change{verb, fmt.Sprintf("%+v", request)} }

// Verbs of changes. That of deleting a network is the cause in the log, since a network that
// was not deleted for one reason is deleted at once for another. The network works without
// the last three changes, and may work without deleting an endpoint (findHostEndpoint).
const (
	verbCreateNetwork   = "create network"
	verbBindAdapter     = "bind adapter" // to a switch, before HNS is asked
	verbCreateEndpoint  = "create endpoint"
	verbDeleteEndpoint  = "delete endpoint"
	verbAttachEndpoint  = "attach endpoint"
	verbBridgeMetric    = "set the metric of the bridge"
	verbDNSRegistration = "turn the registration of the bridge in DNS off"
	verbSaveGood        = "save the host's settings"
)

// refusedError is the error of a change that HNS has refused, and that is tried
// again at next. Its text is the same for all tries, so that it is logged once.
type refusedError struct {
	next time.Time
	err  error
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// try makes a change, unless it was refused and its next try is not due. A change
// that succeeds with a WaitError, because its effect is still missing, is repeated
// after the same times. The error is a *refusedError, or the WaitError as it is, except
// for context.Canceled, which says nothing about the change.
func (t *tries) try(c change, call func() error) error {
	if err := t.due(c); err != nil {
		return err
	}
	err := call()
	if err == nil || errors.Is(err, context.Canceled) {
		delete(t.refused, c)
		return err
	}
	r := t.refused[c]
	if r == nil {
		r = &reconcile.Backoff{First: t.pace.Refused}
		t.refused[c] = r
	}
	r.Last = t.pace.MaxRefused // the longest pause from now on
	if c.verb == causeRolledBack || errors.Is(err, hns.ErrAddressInUse) {
		r.Last = min(r.Last, soon)
	}
	r.Fail(err)
	return refusalOf(r)
}

// soon is the longest time between two tries to delete a network without which the
// host gets its addresses back, and to create an endpoint whose address another one
// has, which somebody will delete.
const soon = 30 * time.Second

// due returns the error of the last try until the next one is due.
func (t *tries) due(c change) error {
	if r := t.refused[c]; r != nil && !r.Due() {
		return refusalOf(r)
	}
	return nil
}

// refusalOf returns the error of a change that waits for its next try. A WaitError is not
// wrapped: ticks go on, since what it waits for may come at any time (setWaiting).
func refusalOf(r *reconcile.Backoff) error {
	if wait := (*dataplane.WaitError)(nil); errors.As(r.Err(), &wait) {
		return r.Err()
	}
	return &refusedError{r.Next(), r.Err()}
}

// forget forgets the refusals of changes that obsolete reports.
func (t *tries) forget(obsolete func(change) bool) {
	for c := range t.refused {
		if obsolete(c) {
			delete(t.refused, c)
		}
	}
}

// forgetVerb forgets the refusals of changes that are no longer needed.
func (t *tries) forgetVerb(verb string) { t.forget(func(c change) bool { return c.verb == verb }) }

// hnsStopped makes everything be tried at once when HNS answers again, except for
// changes during which HNS stopped: they may be what stops it.
func (t *tries) hnsStopped() {
	t.forget(func(c change) bool { return !errors.Is(t.refused[c].Err(), hns.ErrUnavailable) })
}
