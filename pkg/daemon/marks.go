package daemon

import (
	"bytes"
	"encoding/json"
	"time"

	"flannel/pkg/daemon/rollout"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// marks are a rollout.Mark in JSON: the keys that a node adds to the backend
// data of its lease while it takes part in the rollout of a configuration (ADR
// 4, package rollout), and afterwards: peers decide by them whether to adopt it. flannel
// ignores keys that it does not know. One of the keys for a phase is set, to the ID of a
// configuration:
//
//	{"VNI":1,"VtepMAC":"02:00:00:00:00:03","Offered":"…","Answers":true}    the node has received it
//	{"VNI":2,"VtepMAC":"02:00:00:00:00:04","Adopting":"…","Answers":true}   the node has it on trial
//	{"VNI":2,"VtepMAC":"02:00:00:00:00:04","Adopted":"…"}                   it works: another node has answered a probe
//
// Nodes of the former release publish only Adopting and Adopted. Whether they can
// answer probes is unknown, so they count as if they did.
type marks struct {
	Offered  string `json:",omitempty"`
	Adopting string `json:",omitempty"`
	Adopted  string `json:",omitempty"`
	Untested string `json:",omitempty"` // the node keeps the configuration, and no answer to a probe is possible
	Reverted string `json:",omitempty"`
	Answers  *bool  `json:",omitempty"` // rollout.Mark.Answers; nil: true
}

// phases returns the keys for phases, the furthest first.
func (m *marks) phases() []phaseKey {
	return []phaseKey{{&m.Adopted, rollout.Proven}, {&m.Untested, rollout.WithoutTest}, {&m.Reverted, rollout.Reverted},
		{&m.Adopting, rollout.OnTrial}, {&m.Offered, rollout.Ready}}
}

// phaseKey is a key with the phase that it stands for.
type phaseKey struct {
	id    *string
	phase rollout.Phase
}

// markOf returns the mark in a lease; zero: there is none.
func markOf(l *subnet.Lease) rollout.Mark {
	for _, e := range l.Endpoints() {
		var m marks
		// Each mark has one of these two texts: without them, nothing has to be
		// decoded.
		if !bytes.Contains(e.Data, []byte("Adopt")) && !bytes.Contains(e.Data, []byte("Answers")) || json.Unmarshal(e.Data, &m) != nil {
			continue
		}
		for _, p := range m.phases() {
			if *p.id != "" {
				return rollout.Mark{ID: *p.id, Phase: p.phase, Answers: m.Answers == nil || *m.Answers}
			}
		}
	}
	return rollout.Mark{}
}

// withMark adds a mark to the backend data of the lease's first endpoint that
// has a JSON object or no data. A lease without such an endpoint, such as one
// whose data is a command's output, stays as it is. Each pass calls withMark, for the
// lease that is published; the zero Mark adds nothing.
func withMark(l subnet.Lease, mark rollout.Mark) subnet.Lease {
	var m marks
	if mark.Phase != rollout.Proven { // a node with a proof answers, so that "Adopted" alone is enough, as in the former release
		m.Answers = &mark.Answers
	}
	for _, p := range m.phases() {
		if p.phase == mark.Phase {
			*p.id = mark.ID
		}
	}
	for _, e := range []*subnet.Endpoint{&l.V4, &l.V6} {
		if mark == (rollout.Mark{}) || !e.On() {
			continue
		}
		var fields map[string]any
		if len(e.Data) > 0 && json.Unmarshal(e.Data, &fields) != nil {
			continue
		}
		if fields == nil { // no data, or null
			fields = map[string]any{}
		}
		added, err := json.Marshal(m)
		if err == nil {
			err = json.Unmarshal(added, &fields)
		}
		if raw, encodeErr := json.Marshal(fields); err == nil && encodeErr == nil {
			e.Data = raw
		}
		break
	}
	return l
}

// markTimes has when this node saw the marks of its peers change to what they are, by
// the names of the leases: rollout.Peer.Seen, by which a rollout tells how recent a mark
// is. The inbox has one, and guards it by its lock. A mark that was there when the peer was
// first seen has no entry, and does not count: a dead node or a stranger may have left it.
type markTimes map[string]markTime

// markTime is when a mark was seen to appear. missed: see rollout.Peer.Missed.
type markTime struct {
	seen   time.Time
	missed bool
}

// observe records a change of a peer's lease.
func (m markTimes) observe(c reconcile.Change[subnet.Lease], now time.Time) {
	name := c.Either().Name
	if c.New == nil {
		delete(m, name)
		return
	}
	var before rollout.Mark
	if c.Old != nil {
		before = markOf(c.Old)
	}
	mark := markOf(c.New)
	if mark.ID == before.ID && mark.Phase == before.Phase {
		return // if the peer is new, there is no mark
	}
	if mark.Phase == rollout.NoPhase || c.Old == nil {
		delete(m, name)
		return
	}
	former, counted := m[name] // of the mark before
	m[name] = markTime{now, mark.Phase > rollout.OnTrial && (before.ID != mark.ID || !counted || former.missed)}
}
