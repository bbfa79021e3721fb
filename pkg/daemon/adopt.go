package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/rollout"
	"flannel/subnet"
)

// adoption puts a new configuration in force: at once if this node still
// reaches its peers with it, or else when package rollout decides so; such a
// configuration is called disruptive. Two nodes reach each other if their
// configurations have the same wire (VNI and port, for instance). Only the loop
// uses an adoption, except for the atomic fields, which the goroutine of
// probePeers uses, too. In the zero adoption no rollout is in progress.
type adoption struct {
	rollout rollout.Rollout
	offered validConfig // the subject of the rollout
	former  validConfig // in force before the trial, and again after a failed one
	began   time.Time   // of the trial
	invalid string      // why the configuration in the store is not even offered; "": it is

	stepTimer  *time.Timer            // notifies the loop of the next step; nil: none is due
	probing    atomic.Bool            // the goroutine of probePeers runs
	answeredID atomic.Pointer[string] // the ID of the configuration with which a peer has answered
	probeErr   atomic.Pointer[string] // why the last probe got no answer; nil: there was none
}

// validConfig is a validated configuration and its wire. To put it in force, the
// maker builds a backend for the underlay of that moment.
type validConfig struct {
	config subnet.Config
	maker  backend.Maker
	wire   backend.Wire
}

func (n *node) validConfig() validConfig { return validConfig{n.config, n.maker, n.backend.Wire()} }

// offer puts a valid configuration in force, or starts its rollout. next is a
// copy of n with that configuration.
//
//	new wire                                       result
//	that of the trial                              the trial continues
//	that in force, or the former one of a trial    in force at once
//	another one, and rollouts are off              in force at once
//	another one, and the backend made no paths     in force at once
//	none, as the new backend makes no paths        refused until the next start
//	another one                                    a rollout begins; a trial before it ends
func (d *Daemon) offer(n *node, next node) error {
	a, to, wire := &d.adoption, next.validConfig(), n.backend.Wire()
	a.rollout.Stagger = d.Settings.ConfigStagger
	trying := a.rollout.State() == rollout.Trying
	switch {
	case trying && to.wire == wire: // the trial goes on
	case to.wire == wire, trying && to.wire == a.former.wire: // not disruptive, or a return to the former configuration
		d.withdraw()
	case a.rollout.Stagger == 0 || !wire.Paths: // rollouts are off, or no peer is reached now
		d.withdraw()
	case !to.wire.Paths:
		return fmt.Errorf("%s would disconnect this node from all others, so it takes effect only when flanneld is restarted", to.wire.Name)
	default:
		if trying {
			if err := d.activate(n, a.former, causeConfigReverted, "ending the trial of a network configuration, because the configuration changed again"); err != nil {
				return err
			}
			d.withdraw()
		}
		a.offered = to
		if a.rollout.Offer(rollout.ID(to.wire.Name), time.Now()) {
			d.Log.Warn("the new network configuration disconnects nodes that have it from nodes that do not: "+
				"two nodes will try it first, and the others follow when these reach each other; restore the former configuration to stop the rollout",
				"cause", causeConfigDisruptive, "to", to.wire.Name, "from", wire.Name, "hold", a.rollout.Hold())
		}
		return nil
	}
	d.Log.Info("network configuration changed", "cause", causeConfigChanged, "backend", next.config.Backend)
	*n = next
	return nil
}

// withdraw ends the rollout, if one is in progress.
func (d *Daemon) withdraw() {
	if s := d.adoption.rollout.State(); s == rollout.Waiting || s == rollout.Trying {
		d.Log.Info("the disruptive network configuration was withdrawn", "was", d.adoption.offered.wire.Name)
	}
	d.adoption.rollout.Withdraw()
}

// stepRollout does the next step of the rollout, if one is in progress; see the
// table in package rollout.
func (d *Daemon) stepRollout(ctx context.Context, n *node, in *inbox) error {
	a := &d.adoption
	if a.rollout.State() == rollout.Settled {
		return nil
	}
	peers, complete := in.peers()
	if !complete {
		return nil
	}
	if id := a.answeredID.Load(); id != nil && *id == a.rollout.Mark().ID && a.rollout.State() == rollout.Trying {
		a.rollout.Answered()
		d.Log.Info("another node answers with the new network configuration, keeping it", "wire", a.offered.wire.Name)
	}
	cluster := rollout.Cluster{Self: n.lease.Name, Follower: d.Settings.OS == "windows"}
	for _, l := range peers.Leases {
		cluster.Peers = append(cluster.Peers, rollout.Peer{Name: l.Name, Mark: markOf(l)})
	}
	before := a.rollout.State()
	action, delay := a.rollout.Step(cluster, time.Now())
	var err error
	switch {
	case action == rollout.Adopt:
		a.former, a.began = n.validConfig(), time.Now()
		a.probeErr.Store(nil) // of an earlier trial
		err = d.activate(n, a.offered, causeConfigTrial, "trying the new network configuration")
	case a.rollout.State() == rollout.Refused && n.backend.Wire() == a.offered.wire: // repeated until activate succeeds
		err = d.activate(n, a.former, causeConfigReverted, "no node answered with the new network configuration, restoring the former one")
	case before != a.rollout.State() && a.rollout.State() == rollout.Refused:
		d.Log.Error("no pair of nodes reached each other with the new network configuration, keeping the former one; "+
			"to force the new one, restart flanneld on every node", "cause", causeConfigUnproven, "refused", a.offered.wire.Name)
	}
	if a.rollout.State() == rollout.Trying {
		d.probePeers(ctx, n, in, peers.Leases)
	}
	// One timer at most: each pass replaces that of the pass before.
	if a.stepTimer != nil {
		a.stepTimer.Stop()
	}
	if delay > 0 {
		a.stepTimer = time.AfterFunc(delay, func() { notify(in.changed) })
	}
	return err
}

// activate puts a configuration in force, and logs msg.
func (d *Daemon) activate(n *node, c validConfig, cause, msg string) error {
	next := *n // n stays as it is if the configuration does not fit the present underlay
	next.config, next.maker = c.config, c.maker
	if err := d.build(&next); err != nil {
		return err
	}
	args := []any{"cause", cause, "to", c.wire.Name, "from", n.backend.Wire().Name}
	if probeErr := d.adoption.probeErr.Swap(nil); probeErr != nil {
		args = append(args, "last", *probeErr)
	}
	d.Log.Warn(msg, args...)
	*n = next
	return nil
}

// refuse records why the configuration in the store is invalid; nil: it is valid.
func (a *adoption) refuse(err error) {
	a.invalid = ""
	if err != nil {
		a.invalid = fmt.Sprintf("the network configuration in the store is refused, and the one before it stays in force: %.*v", maxErrorText, err)
	}
}

// pendingReason returns why the configuration in the store is not in force for good
// ("": it is), and whether it was refused. The text changes only when the state does.
func (a *adoption) pendingReason() (reason string, refused bool) {
	if a.invalid != "" {
		return a.invalid, true
	}
	at := func(t time.Time) string { return t.Format(time.RFC3339) }
	to := a.offered.wire.Name
	switch a.rollout.State() {
	case rollout.Waiting:
		if turn := a.rollout.Turn(); !turn.IsZero() {
			return fmt.Sprintf("the network configuration with %s is pending: this node tries it at %s, or earlier when it works on other nodes", to, at(turn)), false
		}
		return fmt.Sprintf("the network configuration with %s is pending: other nodes try it first", to), false
	case rollout.Trying:
		return fmt.Sprintf("the network configuration with %s is on trial: this node restores the former one at %s unless another node answers", to, at(a.rollout.Deadline())), false
	case rollout.Refused:
		return fmt.Sprintf("the network configuration with %s was refused: no node answered with it; restore the former one in the store, or restart flanneld on every node to force the new one", to), true
	}
	return "", false
}

const (
	probeTimeout = 500 * time.Millisecond // for one address
	probePause   = 500 * time.Millisecond // after a round without an answer
	// maxProbes limits the peers of one round, so that peers that adopt the
	// configuration meanwhile are probed soon.
	maxProbes = 8
)

// probePeers starts a goroutine that finds out whether a peer with the
// configuration on trial answers, unless one runs already, and notifies the
// loop at its end. With a backend with which no address of a peer answers
// (wire.Echo is false), a peer counts as answering with which this node has
// negotiated keys in the trial (wire.Keys), or else one whose lease is valid.
func (d *Daemon) probePeers(ctx context.Context, n *node, in *inbox, peers []*subnet.Lease) {
	a, id := &d.adoption, d.adoption.rollout.Mark().ID
	var subnets []netip.Prefix // one of each peer
	for _, l := range peers {
		if markOf(l).ID != id {
			continue
		}
		if _, err := n.backend.Paths(l); err == nil {
			subnets = append(subnets, l.Endpoints()[0].Subnet)
		}
	}
	if len(subnets) == 0 || a.probing.Swap(true) {
		return
	}
	// Each round probes other peers, because some never answer, such as Windows nodes.
	rand.Shuffle(len(subnets), func(i, j int) { subnets[i], subnets[j] = subnets[j], subnets[i] })
	subnets = subnets[:min(len(subnets), maxProbes)]
	wire, began := a.offered.wire, a.began
	// At most one such goroutine runs (a.probing). It sets probing to false before it
	// notifies, so that the pass that this causes can start the next round.
	go func() {
		var err error
		switch {
		case wire.Echo && d.Echo != nil:
			err = d.probe(ctx, subnets)
		case wire.Keys:
			err = d.negotiated(subnets, began)
		}
		if err == nil {
			a.answeredID.Store(&id)
		} else {
			select {
			case <-ctx.Done():
			case <-time.After(probePause):
			}
		}
		a.probing.Store(false)
		notify(in.changed)
	}()
}

// negotiated returns nil if this node has negotiated keys with one of the peers
// since began, else an error, which it keeps in probeErr.
func (d *Daemon) negotiated(subnets []netip.Prefix, began time.Time) error {
	tunnels, ok := d.Dataplane.(dataplane.TrafficReader)
	if !ok {
		return nil
	}
	traffic := tunnels.Traffic()
	if slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return traffic[s].Handshake.After(began) }) {
		return nil
	}
	err := fmt.Errorf("no keys were negotiated with %v", subnets)
	d.adoption.probeErr.Store(new(err.Error()))
	return err
}

// probe returns nil as soon as a peer answers, else the last error. It keeps
// each error in probeErr.
//
// The first address of a subnet is that of the tunnel device, and the second one that of
// the pods' bridge. Both are tried, because kernels before 5.14 take the first
// one for a broadcast address, and do not answer, if the bridge is older than
// the device.
func (d *Daemon) probe(ctx context.Context, subnets []netip.Prefix) (last error) {
	for _, s := range subnets {
		first := s.Addr()
		for _, addr := range []netip.Addr{first, first.Next()} {
			err := d.echo(ctx, addr)
			if err == nil {
				return nil
			}
			last = fmt.Errorf("%v: %w", addr, err)
			d.adoption.probeErr.Store(new(last.Error()))
		}
	}
	return last
}

// echo asks one address, for probeTimeout at most.
func (d *Daemon) echo(ctx context.Context, addr netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return d.Echo(ctx, addr)
}

// marks are the keys that a node adds to the backend data of its lease while it
// takes part in a rollout, and afterwards. flannel ignores keys that it does
// not know. For example:
//
//	{"VNI":1,"VtepMAC":"02:00:00:00:00:03","Adopting":"…"}   on trial
//	{"VNI":1,"VtepMAC":"02:00:00:00:00:03","Adopted":"…"}    another node has answered
type marks struct{ Adopting, Adopted string }

// markOf returns the mark in a lease; zero: there is none.
func markOf(l *subnet.Lease) rollout.Mark {
	for _, e := range l.Endpoints() {
		var m marks
		if !bytes.Contains(e.Data, []byte("Adopt")) || json.Unmarshal(e.Data, &m) != nil {
			continue
		}
		switch {
		case m.Adopted != "":
			return rollout.Mark{ID: m.Adopted, Proven: true}
		case m.Adopting != "":
			return rollout.Mark{ID: m.Adopting}
		}
	}
	return rollout.Mark{}
}

// withMark adds a mark to the backend data of the lease's first endpoint that
// has a JSON object or no data.
func withMark(l subnet.Lease, m rollout.Mark) subnet.Lease {
	if m == (rollout.Mark{}) {
		return l
	}
	key := "Adopting"
	if m.Proven {
		key = "Adopted"
	}
	for _, e := range []*subnet.Endpoint{&l.V4, &l.V6} {
		if !e.On() {
			continue
		}
		var fields map[string]any
		if len(e.Data) > 0 && json.Unmarshal(e.Data, &fields) != nil {
			continue
		}
		if fields == nil { // no data, or null
			fields = map[string]any{}
		}
		fields[key] = m.ID
		if raw, err := json.Marshal(fields); err == nil {
			e.Data = raw
		}
		break
	}
	return l
}
