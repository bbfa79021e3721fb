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
	"flannel/pkg/rollout"
	"flannel/subnet"
)

// adoption brings a new configuration into force: at once if the peers can still be reached with it, else as package
// rollout decides. Only the loop uses it, but heard, asking and silence are shared with the goroutine that asks peers.
// The zero adoption has never seen a configuration.
type adoption struct {
	rollout rollout.Rollout
	offered configured // what the rollout is about
	former  configured // in force before a trial, and what going back leads to

	again   *time.Timer            // calls for the next step; nil: none is due
	asking  atomic.Bool            // a peer is being asked for an answer
	heard   atomic.Pointer[string] // the ID of the configuration in which a peer has answered
	silence atomic.Pointer[string] // why the last question had no answer
}

// configured is a validated configuration and how the nodes that have it reach each other.
type configured struct {
	config subnet.Config
	maker  backend.Maker
	wire   backend.Wire
}

func (n *node) configured() configured { return configured{n.config, n.maker, n.backend.Wire()} }

// offer takes in a configuration that this node can work with; next is the node with it.
func (d *Daemon) offer(n *node, next node) error {
	a, to := &d.adoption, next.configured()
	a.rollout.Stagger = d.Settings.ConfigStagger
	trying := a.rollout.State() == rollout.Trying
	switch {
	case to.wire == n.backend.Wire(): // peers do not notice the change, or the configuration in force is offered again
		if !trying {
			d.withdraw()
		}
	case trying && to.wire == a.former.wire:
		d.withdraw()
	case a.rollout.Stagger == 0 || !n.backend.Wire().Paths: // without paths to peers there is nothing to lose
		d.withdraw()
	case !to.wire.Paths:
		return fmt.Errorf("%s would cut this node off from every other: this takes effect only when flanneld is restarted", to.wire.Name)
	default:
		if trying {
			if err := d.enforce(n, a.former, causeConfigReverted, "going back to the former network configuration, because another one is offered"); err != nil {
				return err
			}
			d.withdraw()
		}
		a.offered = to
		if a.rollout.Offer(rollout.ID(to.wire.Name), time.Now()) {
			d.Log.Warn("the new network configuration would cut this node off from those that have the former one: "+
				"two nodes try it first, and the others follow when these reach each other; put the former one back to stop that",
				"cause", causeConfigDisruptive, "to", to.wire.Name, "from", n.backend.Wire().Name, "hold", a.rollout.Hold())
		}
		return nil
	}
	d.Log.Info("the network configuration changed", "cause", causeConfigChanged, "backend", next.config.Backend)
	*n = next
	return nil
}

func (d *Daemon) withdraw() {
	if s := d.adoption.rollout.State(); s == rollout.Waiting || s == rollout.Trying {
		d.Log.Info("the disruptive network configuration was taken back", "was", d.adoption.offered.wire.Name)
	}
	d.adoption.rollout.Withdraw()
}

// roll does what is due with a disruptive configuration.
func (d *Daemon) roll(ctx context.Context, n *node, in *inbox) error {
	a := &d.adoption
	if s := a.rollout.State(); s == rollout.Settled {
		n.pending = ""
		return nil
	}
	peers, complete := in.peers()
	if !complete {
		return nil
	}
	if id := a.heard.Load(); id != nil && *id == a.rollout.Mark().ID && a.rollout.State() == rollout.Trying {
		a.rollout.Answered()
		d.Log.Info("another node answers in the new network configuration: it stays", "wire", a.offered.wire.Name)
	}
	cluster := rollout.Cluster{Self: n.lease.Name, Follower: d.Settings.OS == "windows"}
	for _, l := range peers.Leases {
		cluster.Peers = append(cluster.Peers, rollout.Peer{Name: l.Name, Mark: markOf(l)})
	}
	was := a.rollout.State()
	action, again := a.rollout.Step(cluster, time.Now())
	var err error
	switch {
	case action == rollout.Adopt:
		a.former = n.configured()
		a.silence.Store(nil) // of an earlier trial
		err = d.enforce(n, a.offered, causeConfigTrial, "trying the new network configuration")
	case a.rollout.State() == rollout.Refused && n.backend.Wire() == a.offered.wire: // until going back succeeds
		err = d.enforce(n, a.former, causeConfigReverted, "no node answered in the new network configuration: going back to the former one")
	case was != a.rollout.State() && a.rollout.State() == rollout.Refused:
		d.Log.Error("no node could prove the new network configuration: the former one stays in force; "+
			"to take the new one all the same, restart flanneld on every node", "cause", causeConfigUnproven, "refused", a.offered.wire.Name)
	}
	if a.rollout.State() == rollout.Trying {
		d.ask(ctx, n, in, peers.Leases)
	}
	if a.again != nil {
		a.again.Stop()
	}
	if again > 0 {
		a.again = time.AfterFunc(again, func() { poke(in.changed) })
	}
	n.pending = a.describe()
	return err
}

// enforce puts a configuration in force.
func (d *Daemon) enforce(n *node, c configured, cause, why string) error {
	next := *n
	next.config, next.maker = c.config, c.maker
	if err := d.build(&next); err != nil {
		return err
	}
	args := []any{"cause", cause, "to", c.wire.Name, "from", n.backend.Wire().Name}
	if s := d.adoption.silence.Swap(nil); s != nil {
		args = append(args, "last", *s)
	}
	d.Log.Warn(why, args...)
	*n = next
	return nil
}

// describe says what waits to be adopted, the same text for as long as nothing has changed; "": nothing.
func (a *adoption) describe() string {
	at := func(t time.Time) string { return t.Format(time.RFC3339) }
	to := a.offered.wire.Name
	switch a.rollout.State() {
	case rollout.Waiting:
		if turn := a.rollout.Turn(); !turn.IsZero() {
			return fmt.Sprintf("the network configuration with %s is not adopted yet: this node tries it at %s, or when others have proven it", to, at(turn))
		}
		return fmt.Sprintf("the network configuration with %s is not adopted yet: other nodes try it first", to)
	case rollout.Trying:
		return fmt.Sprintf("the network configuration with %s is on trial: this node goes back at %s unless another node answers", to, at(a.rollout.Deadline()))
	case rollout.Refused:
		return fmt.Sprintf("the network configuration with %s was refused: no node answered in it; put the former one back, or restart flanneld on every node to force it", to)
	}
	return ""
}

const (
	// askFor bounds the wait for one address's answer.
	askFor = 500 * time.Millisecond
	// askAgain is the pause before the next peer is asked.
	askAgain = 500 * time.Millisecond
	// askMany bounds how many peers are asked in a row, so that those that adopt it meanwhile are asked soon, too.
	askMany = 8
)

// ask finds out, in a goroutine of its own, whether a node that has the configuration on trial answers. With a backend
// where no address of a peer answers, it is enough that the peer's lease is accepted.
func (d *Daemon) ask(ctx context.Context, n *node, in *inbox, peers []*subnet.Lease) {
	a, id := &d.adoption, d.adoption.rollout.Mark().ID
	var addrs []netip.Addr // the first of each peer's subnet
	for _, l := range peers {
		if markOf(l).ID != id {
			continue
		}
		if _, err := n.backend.Paths(l); err == nil {
			addrs = append(addrs, l.Endpoints()[0].Subnet.Addr())
		}
	}
	if len(addrs) == 0 || a.asking.Swap(true) {
		return
	}
	// Each row has other peers: those with the first leases may not answer, as Windows nodes may not.
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	addrs = addrs[:min(len(addrs), askMany)]
	echo := a.offered.wire.Echo && d.Echo != nil
	go func() {
		// The tunnel device has the first address. Kernels before 5.14 take that for a broadcast address, and do not
		// answer, if the pods' bridge was there before the device; then the bridge has the second address.
		ok := !echo || slices.ContainsFunc(addrs, func(first netip.Addr) bool {
			return d.answers(ctx, first) || d.answers(ctx, first.Next())
		})
		if ok {
			a.heard.Store(&id)
		} else {
			select {
			case <-ctx.Done():
			case <-time.After(askAgain):
			}
		}
		a.asking.Store(false)
		poke(in.changed)
	}()
}

// answers asks an address, and keeps why it does not answer.
func (d *Daemon) answers(ctx context.Context, addr netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	err := d.Echo(ctx, addr)
	if err != nil {
		text := fmt.Sprintf("%v: %v", addr, err)
		d.adoption.silence.Store(&text)
	}
	return err == nil
}

// marks is what a node adds to its lease's backend data for a configuration that it has adopted while it ran. flannel
// ignores keys that it does not know.
type marks struct{ Adopting, Adopted string }

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

// withMark adds a mark to a lease that a backend has described.
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
