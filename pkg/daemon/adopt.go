package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"flannel/backend"
	"flannel/pkg/daemon/rollout"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// adoption puts a new configuration in force. Two nodes reach each other if their
// configurations have the same wire (VNI and port, for instance). A configuration
// with another wire than the one in force is called disruptive: package rollout
// decides when this node adopts it. Any other configuration is adopted at once.
// The goroutine of loop.run calls all methods and has the fields to itself (join,
// before), except the trial, which the goroutine of askPeers uses, too. In the zero
// adoption no rollout is in progress.
type adoption struct {
	rollout rollout.Rollout // its states and words (Step, Mark, Stagger) are in package rollout
	offered validConfig     // the subject of the rollout; meaningless if that is Settled
	former  validConfig     // in force before the trial, and again after a failed one
	invalid string          // why the configuration in the store is not even offered; "": it is
	kept    bool            // the configuration in the store is another one than in force, which Settings.KeepConfig keeps
	// unfit is the underlay on which the configuration in the store, or the one to
	// return to first, could not be built: another underlay may fit. The zero Link: try again
	// in the next pass. nil: no configuration waits for that.
	unfit *underlay.Link

	participants participants // the peers that take part in the rollout; zero: to be computed again

	trial *trial // of offered; nil: none yet
}

// validConfig is a validated configuration with its wire. The maker makes the
// backend for the underlay of the moment when it is needed.
type validConfig struct {
	config subnet.Config
	maker  backend.Maker
	wire   backend.Wire
}

// validConfig returns the configuration in force.
func (n *node) validConfig() validConfig {
	return validConfig{n.config, n.maker, n.backend.Wire()}
}

// configPart puts the network configuration of the store in force.
func (d *Daemon) configPart() part {
	return part{name: partConfig, reconcile: d.reconfigure, report: d.reportPending}
}

// reconfigure applies a change of the configuration. If the new one is invalid, the
// one in force stays, the node stays ready, and the new one is tried again only
//   - with another underlay, if it did not fit the present one,
//   - when the one in force stops being temporary (see isTemporary), and
//   - when this node joins or starts.
func (d *Daemon) reconfigure(_ context.Context, p *pass) error {
	raw, unread := p.in.takeConfig() // raw is the latest, unread or not
	if unfit := d.adoption.unfit; unfit != nil && !unfit.Equal(p.host.link) {
		unread = true // it may fit now
	}
	switch {
	case unread && d.Settings.KeepConfig:
		d.adoption.kept = !sameJSON(raw, p.raw)
		if d.adoption.kept {
			d.Log.Info("network configuration changed, will take effect at the next start of flanneld (--config-follow=false)", "cause", causeConfigKept)
		}
		_, _, _, err := d.Parse(raw)
		if d.adoption.setInvalid(err); err != nil {
			d.Log.Error("changed network configuration is invalid, flanneld would not start with it", "cause", causeConfigRefused, "error", err)
		}
	case unread:
		err := d.followConfig(p.node, raw)
		d.adoption.setInvalid(err)
		if err != nil {
			d.Log.Error("changed network configuration refused, keeping the former one", "cause", causeConfigRefused, "error", err)
			// For flanneld status: the pass does not fail.
			d.view.addError(partConfig, fmt.Errorf("changed network configuration refused: %w", err))
			if d.adoption.rollout.State() == rollout.Waiting { // for a configuration that is no longer in the store; a trial goes on
				d.withdraw(p.validConfig())
			}
		}
	}
	a := &d.adoption
	before := a.isTemporary(p.backend.Wire())
	err := d.stepRollout(p)
	if before && !a.isTemporary(p.backend.Wire()) && a.unfit != nil {
		a.unfit = &underlay.Link{} // it differs from this host's, so the next pass reads the configuration again
		p.wakeAt(time.Now())
	}
	return err
}

// sameJSON reports whether two texts have the same JSON value or, if one is not JSON, the same bytes.
func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return bytes.Equal(a, b)
	}
	return reflect.DeepEqual(x, y)
}

// reportPending says why the configuration in the store is not in force: to the cluster (p.store),
// and to the Board.
func (d *Daemon) reportPending(p *pass) {
	reason, refused := d.adoption.pendingReason()
	p.store.PendingConfig = reason
	p.tell(status.OfNode, func(r *status.Report) { r.Pending, r.Refused = reason, refused })
}

// followConfig validates a new configuration, and puts it in force or has
// package rollout decide when.
func (d *Daemon) followConfig(n *node, raw []byte) error {
	next := *n
	d.adoption.unfit = nil
	if err := d.readConfig(&next, raw); err != nil {
		return err
	}
	if err := n.config.CanBecome(next.config); err != nil { // pods have addresses of a network that next has no more
		return err
	}
	if err := d.build(&next); err != nil {
		d.adoption.unfit = new(next.host.link)
		return err
	}
	return d.offer(n, next)
}

// offer puts a valid configuration in force, or starts its rollout. next is a
// copy of n with that configuration. A backend makes no paths if its Wire.Paths is
// false: with "alloc", flanneld only has a subnet, and reaches no peer.
//
//	new wire                                       result
//	that of the trial, or one kept as unproven     in force at once; the trial continues
//	that in force, or the former one of a trial    in force at once
//	another one, and rollouts are off              in force at once
//	another one, and the backend made no paths     in force at once
//	none, as the new backend makes no paths        refused until the next start
//	another one                                    a rollout begins; a trial before it ends
//
// The beginning or the end of a trial may have failed, so that the configuration
// in force is not the one that the state stands for: see lasting. After an error,
// nothing has changed but the durations of the rollout.
func (d *Daemon) offer(n *node, next node) error {
	a, to, wire := &d.adoption, next.validConfig(), n.backend.Wire()
	// The duration of one turn, 0: rollouts are off; and the delay with which
	// another node may receive the same configuration.
	a.rollout.Stagger, a.rollout.Skew = d.Settings.ConfigStagger, d.Settings.ConfigSkew
	lasting := a.lasting(wire)
	switch {
	case a.rollout.InForce() && to.wire == a.offered.wire: // the trial goes on
		a.setOffered(to)
	case to.wire == lasting: // not disruptive, or a return to the former configuration
		d.withdraw(to)
	case a.rollout.Stagger == 0 || !lasting.Paths: // rollouts are off, or no peer is reached now
		d.withdraw(to)
	case !to.wire.Paths:
		return fmt.Errorf("%s would disconnect this node from all others, so it takes effect only when flanneld is restarted", to.wire.Name)
	default:
		if wire != lasting {
			if err := d.activate(n, a.former, causeConfigReverted, "ending the trial of a network configuration, because the configuration changed again"); err != nil {
				a.unfit = new(n.host.link)
				return err
			}
		}
		if a.rollout.State() == rollout.Trying {
			d.withdraw(n.validConfig())
		}
		a.setOffered(to)
		// Offer returns false for a wire that is the subject of the rollout already.
		if a.rollout.Offer(rollout.ID(to.wire.Name), time.Now()) {
			d.Log.Warn("the new network configuration disconnects nodes that have it from nodes that do not: "+
				"when all nodes have received it, two try it, and the others follow when these reach each other; restore the former configuration to stop the rollout",
				"cause", causeConfigDisruptive, "to", to.wire.Name, "from", lasting.Name, "hold", a.rollout.Hold())
		}
		return nil
	}
	d.Log.Info("network configuration changed", "cause", causeConfigChanged, "backend", next.config.Backend)
	*n = next
	return nil
}

// setOffered replaces the subject of the rollout. The participants are computed
// again, since they depend on it.
func (a *adoption) setOffered(c validConfig) { a.offered, a.participants = c, participants{} }

// lasting returns the wire that this node has, or returns to if the offered
// configuration does not work: during a trial, and after one whose end has failed,
// that of the former configuration. inForce is the one in force.
func (a *adoption) lasting(inForce backend.Wire) backend.Wire {
	switch state := a.rollout.State(); {
	case state == rollout.Trying, state == rollout.Refused && inForce == a.offered.wire:
		return a.former.wire
	}
	return inForce
}

// isTemporary reports whether the former configuration must be restored before another
// one is offered: the one in force is on trial, or remains from a trial whose end has failed.
func (a *adoption) isTemporary(inForce backend.Wire) bool { return a.lasting(inForce) != inForce }

// withdraw ends the rollout, if one is in progress; inForce is the configuration
// in force. If inForce was unproven when the withdrawn one was offered, the rollout
// of inForce continues in the state Unproven, and a new trial looks for a proof.
func (d *Daemon) withdraw(inForce validConfig) {
	a := &d.adoption
	if s := a.rollout.State(); s == rollout.Waiting || s == rollout.Trying {
		d.Log.Info("the disruptive network configuration was withdrawn", "was", a.offered.wire.Name)
	}
	if a.rollout.Withdraw(time.Now()); a.rollout.InForce() {
		a.setOffered(inForce)
		a.trial = &trial{began: time.Now()}
	}
}

// stepRollout does the next step of the rollout, if one is in progress; see the
// table in package rollout. Each pass calls it. Its error fails the part config: the
// configuration that was to be put in force could not be built (activate).
func (d *Daemon) stepRollout(p *pass) error {
	a, n := &d.adoption, p.node
	unchanged, before := a.rollout, a.rollout.State() // a copy, for an Adopt that fails
	if before == rollout.Settled {
		return nil
	}
	peers, seen, complete := p.in.marked() // the peers, and when the mark of each has changed
	if !complete {                         // no set of peers was received yet
		return nil
	}
	if a.rollout.InForce() && a.trial != nil {
		if peer := a.trial.answered.Load(); peer != nil {
			a.rollout.Answered(time.Now())
			d.Log.Info("another node answers by the new way, keeping the new network configuration", "cause", causeConfigProven,
				"wire", a.offered.wire.Name, "peer", *peer)
			return nil // the part publish, later in this pass, has the new Mark published
		}
	}
	if a.lasts(n.backend.Wire()) && !a.participants.isFor(n, peers.Leases) {
		// The step would judge all peers again. It waits, so that not each change of a peer costs that.
		if next := a.participants.found.Add(time.Duration(len(peers.Leases)) * judgeEach); time.Now().Before(next) {
			p.wakeAt(next)
			return nil
		}
	}
	adopt, delay := a.rollout.Step(d.cluster(p, peers, seen), time.Now())
	state := a.rollout.State()
	var err error
	switch active := n.backend.Wire() == a.offered.wire; { // the node has the offered configuration, as InForce says that it should
	case adopt:
		a.trial = &trial{began: time.Now()}
		if !active { // active: the trial before could not be ended, and the former configuration stays what it was
			a.former = n.validConfig()
		}
		err = d.activate(n, a.offered, causeConfigTrial, "trying the new network configuration")
		if err != nil && state == rollout.Settled { // which has no next step: a later pass repeats this one
			a.rollout, state = unchanged, before
		}
	case a.rollout.InForce() && !active: // repeated until activate succeeds
		err = d.activate(n, a.offered, causeConfigTrial, "trying the new network configuration")
	case state == rollout.Refused && active: // likewise
		err = d.activate(n, a.former, causeConfigReverted, "no node answered by the new way, restoring the former network configuration")
	case before != state && state == rollout.Refused:
		d.Log.Error("no pair of nodes reached each other with the new network configuration, keeping the former one; "+
			"to force the new one, restart flanneld on every node", "cause", causeConfigUnproven, "refused", a.offered.wire.Name)
	case before != state && state == rollout.Unproven:
		d.Log.Warn("keeping the new network configuration as unproven: an answer by the new way is possible only "+
			"when pods have run on this node and on another one", "cause", causeConfigNoEvidence,
			"wire", a.offered.wire.Name, "provenByOthers", a.rollout.ProvenElsewhere())
	}
	if delay > 0 || before != state { // delay 0: Step needs no time; but a new state may have an action that is due at once
		p.wakeAt(time.Now().Add(delay))
	}
	return err
}

// activate puts a configuration in force, and logs msg. After an error, the next pass tries
// again if stepRollout has called activate; if it was offer, the new configuration is refused
// until the underlay changes, or the configuration in force stops being temporary (isTemporary).
func (d *Daemon) activate(n *node, c validConfig, cause, msg string) error {
	next := *n // n stays as it is if the configuration does not fit the present underlay
	next.config, next.maker = c.config, c.maker
	if err := d.build(&next); err != nil {
		return err
	}
	args := []any{"cause", cause, "to", c.wire.Name, "from", n.backend.Wire().Name}
	if t := d.adoption.trial; t != nil { // why nobody has answered askPeers, if that was the last result
		if last := t.err.Swap(nil); last != nil {
			args = append(args, "last", *last)
		}
	}
	d.Log.Warn(msg, args...)
	*n = next
	return nil
}

// setInvalid records why the configuration in the store is invalid; nil: it is valid.
func (a *adoption) setInvalid(err error) {
	a.invalid = ""
	if err != nil {
		// The text goes to the cluster, so it is cut (maxErrorText, in view.go).
		a.invalid = fmt.Sprintf("the network configuration in the store is refused, and the one before it stays in force: %.*v", maxErrorText, err)
	}
}

// pendingReason returns why the configuration in the store is not in force for good
// ("": it is), and whether it was refused. The text changes only when the state does.
func (a *adoption) pendingReason() (reason string, refused bool) {
	if a.invalid != "" {
		return a.invalid, true
	}
	if a.kept {
		return "the network configuration in the store has changed, and takes effect at the next start of flanneld (--config-follow=false)", false
	}
	at := func(t time.Time) string { return t.Format(time.RFC3339) }
	to := a.offered.wire.Name
	switch a.rollout.State() {
	case rollout.Waiting:
		if turn := a.rollout.Turn(); !turn.IsZero() {
			return fmt.Sprintf("the network configuration with %s is pending: this node tries it at %s, or earlier when it works on other nodes", to, at(turn)), false
		}
		return fmt.Sprintf("the network configuration with %s is pending: this node waits until all nodes have received it, and others have proven it", to), false
	case rollout.Trying:
		return fmt.Sprintf("the network configuration with %s is on trial: this node restores the former one at %s unless another node answers", to, at(a.rollout.Deadline())), false
	case rollout.Unproven:
		if a.rollout.ProvenElsewhere() {
			return "", false // it is in force, and works; only this node cannot test it
		}
		return fmt.Sprintf("the network configuration with %s is in force, but unproven: an answer of another node is possible only when pods have run on this node and on another one", to), false
	case rollout.Refused:
		return fmt.Sprintf("the network configuration with %s was refused: no node answered by the new way; restore the former one in the store, or restart flanneld on every node to force the new one", to), true
	}
	return "", false
}
