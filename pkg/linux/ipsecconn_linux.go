package linux

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/charon"
	"flannel/pkg/reconcile"
)

// ikeKey identifies a connection of charon.
type ikeKey struct {
	Local, Remote       netip.Addr
	LocalNet, RemoteNet netip.Prefix
}

// String returns the connection's name, which is flannel's.
func (k ikeKey) String() string {
	return fmt.Sprintf("%s-%s-%s-%s", k.Local, k.LocalNet, k.RemoteNet, k.Remote)
}

// child returns the name that flannel has for the connection's only CHILD_SA (its ESP security
// associations). Ours begins with that: see childOf.
func (k ikeKey) child() string { return fmt.Sprintf("%s-%s", k.LocalNet, k.RemoteNet) }

// parseIKE is the inverse of ikeKey.String.
func parseIKE(name string) (k ikeKey, ok bool) {
	parts := strings.Split(name, "-")
	if len(parts) != 4 {
		return k, false
	}
	var errs [4]error
	k.Local, errs[0] = netip.ParseAddr(parts[0])
	k.LocalNet, errs[1] = netip.ParsePrefix(parts[1])
	k.RemoteNet, errs[2] = netip.ParsePrefix(parts[2])
	k.Remote, errs[3] = netip.ParseAddr(parts[3])
	return k, errs == [4]error{} && k.String() == name
}

// ikeConn is the content of a connection.
type ikeConn struct {
	id       netip.Addr // of this node
	proposal string
	udpEncap bool
	secret   conf.Secret // charon gets it; another one is a change
	// Only List sets these, so that the entry differs from the desired one, and the table calls Set, which ends
	// or negotiates.
	down   bool // the connection has no security association, and is to negotiate one now
	lost   bool // down, because somebody has deleted the keys from the kernel, and charon has not yet accepted to replace them
	former bool // there may be something of the former content, which is to end
}

// unknownConn stands for a content that this run does not know: it has not loaded the connection (then only list has
// it), or a load failed after charon may have taken a part of it (then it is in ikeStore.applied). No desired content
// equals it, so that the connection is loaded again.
var unknownConn = ikeConn{}

// String implements fmt.Stringer: the log has this text of a connection that others have changed.
func (c ikeConn) String() string {
	return fmt.Sprintf("proposal %q, UDPEncap %t, without keys %t, deleted keys to replace %t, former keys %t", c.proposal, c.udpEncap, c.down, c.lost, c.former)
}

// lapsed is Lapsed of the table. List returns the zero content of a connection that is not as this run has loaded it.
// Any other one that differs from the desired one waits for its peer, or its keys have expired or charon replaces them
// already, unless it is lost.
// `swanctl --terminate` by somebody looks like keys that have expired.
func (c ikeConn) lapsed() bool { return c.id.IsValid() && !c.lost }

type ikeEntry = reconcile.Entry[ikeKey, ikeConn]

// childOf returns the name of the connection's CHILD_SA. charon returns the name with the security
// associations, also of former connections. So the name tells the options by which they were
// negotiated, except for the secret, of which nothing must be told.
func childOf(e ikeEntry) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%t", e.Value.proposal, e.Value.udpEncap))
	return fmt.Sprintf("%s-%x", e.Key.child(), sum[:4])
}

// connectionOf returns an entry in charon's form.
func connectionOf(e ikeEntry) charon.Connection {
	return charon.Connection{Name: e.Key.String(), Child: childOf(e), Local: e.Key.Local, Remote: e.Key.Remote, LocalID: e.Value.id, RemoteID: e.Key.Remote,
		LocalNet: e.Key.LocalNet, RemoteNet: e.Key.RemoteNet, Proposal: e.Value.proposal, UDPEncap: e.Value.udpEncap, ReqID: reqID}
}

// ikeState is what the store knows about the security associations of a connection.
type ikeState struct {
	up        bool          // they exist, or are being negotiated
	wasUp     bool          // they existed, in this run
	lost      bool          // charon has installed them, and the kernel does not have all of them
	replacing bool          // charon has accepted to replace the lost keys; false again once they are installed
	pairs     []charon.Pair // those that charon has installed
	since     time.Time     // when this run first saw the connection
	retry     time.Time     // when to negotiate again at the earliest; zero: at once
	delay     time.Duration // from the last negotiation to retry; 0: none was begun since the last success
}

// observe returns the state of a connection by its security associations in charon, and by
// spis, those that the kernel has. What only Set changes (replacing, retry, delay) is copied from s.states.
func (s *ikeStore) observe(key ikeKey, sas []charon.SA, spis map[uint32]bool) *ikeState {
	state := &ikeState{since: time.Now()}
	if before, known := s.states[key]; known {
		*state = *before
	}
	state.up, state.lost, state.pairs = false, false, nil
	installed := false
	for _, sa := range sas {
		state.up = state.up || sa.State == "CONNECTING" || sa.Busy // charon negotiates
		for _, p := range sa.Pairs {
			complete := spis[p.In] && spis[p.Out]
			installed = installed || p.State == "INSTALLED" && complete
			state.lost = state.lost || p.State == "INSTALLED" && !complete
			if p.State == "INSTALLED" {
				state.pairs = append(state.pairs, p)
			}
		}
	}
	if installed { // so the last negotiation succeeded: the delays begin anew
		*state = ikeState{up: true, wasUp: true, pairs: state.pairs, since: state.since}
	}
	return state
}

// hasFormer reports whether there are security associations of other options than those of e, as far as these
// are known.
func (s *ikeState) hasFormer(e ikeEntry) bool {
	return e.Value != unknownConn && slices.ContainsFunc(s.pairs, func(p charon.Pair) bool { return isFormer(e, p) })
}

// isFormer reports whether p is of other options than those of e: it should be in UDP and is not, or its name
// says so. The names of those of flannel, and of flanneld up to 0.7, say nothing. A pair that should not be in
// UDP may be so because of NAT.
func isFormer(e ikeEntry, p charon.Pair) bool {
	return e.Value.udpEncap && !p.UDPEncap || strings.HasPrefix(p.Child, e.Key.child()+"-") && p.Child != childOf(e)
}

// The delay between negotiations that fail at once, for example because the secrets
// differ. The first one is a little less than pollInterval, so that the next poll does not
// come just before the end of the delay.
const minIKEDelay, maxIKEDelay = pollInterval * 9 / 10, 5 * time.Minute

// due reports whether to negotiate now, by the table at ikeStore.
func (s *ikeState) due(key ikeKey) bool {
	return (s.wasUp || key.Local.Less(key.Remote) || time.Since(s.since) >= minIKEDelay) && !time.Now().Before(s.retry)
}

// listed sets the fields of a connection's content that only List sets.
func (s *ikeStore) listed(key ikeKey, conn ikeConn, state *ikeState) ikeConn {
	_, conn.former = s.replaced[key]
	conn.down = !state.up && state.due(key)
	conn.lost = conn.down && state.lost && !state.replacing // another attempt is not another repair
	return conn
}

// trafficOf returns what passed through the security associations of a connection. The
// latest one has the endpoint and the time of the handshake.
func trafficOf(key ikeKey, sas []charon.SA) dataplane.TunnelReport {
	t := dataplane.TunnelReport{Endpoint: netip.AddrPortFrom(key.Remote, 500)} // of IKE, until there is a latest one
	for _, sa := range sas {
		for _, p := range sa.Pairs {
			if p.State == "INSTALLED" {
				t.Received, t.Sent = t.Received+p.Received, t.Sent+p.Sent
				if at := time.Now().Add(-sa.Since); at.After(t.Handshake) {
					t.Endpoint, t.Handshake = sa.Remote, at
				}
			}
		}
	}
	return t
}
