package linux

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"

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
	secret   [8]byte // a digest, by which a change is noticed
	// down: the connection has no security association, and is to negotiate one now. Only List sets it, so that
	// the entry differs from the desired one, and the table calls Set, which begins to negotiate.
	down bool
}

// String leaves out the digest, by which somebody who reads a log could find out the secret.
func (c ikeConn) String() string {
	return fmt.Sprintf("proposal %q, UDPEncap %t, without keys %t", c.proposal, c.udpEncap, c.down)
}

type ikeEntry = reconcile.Entry[ikeKey, ikeConn]

// childOf returns the name of the connection's CHILD_SA. charon returns the name with the security
// associations, also of former connections, and no other option of theirs. So the name tells the
// options apart, except for the secret, of which nothing must be told.
func childOf(e ikeEntry) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%t", e.Value.proposal, e.Value.udpEncap))
	return fmt.Sprintf("%s-%x", e.Key.child(), sum[:4])
}
