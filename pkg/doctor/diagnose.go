package doctor

import (
	"strings"

	"flannel/pkg/dataplane"
)

// Cause is why packets do not reach the pods of a peer, as diagnose finds from the
// tests of its Path. pathchecks.go has a check for each. Its values are part of the
// doctor's output and never change.
type Cause string

// Causes of paths that do not work.
const (
	causePeerDown      Cause = "peer-down"
	causePortClosed    Cause = "port-closed"
	causePortFiltered  Cause = "port-filtered"
	causeMTU           Cause = "mtu"
	causeChecksum      Cause = "checksum-offload"
	causeMACMismatch   Cause = "mac-mismatch"
	causeCloudRoute    Cause = "cloud-route"
	causeReversePath   Cause = "reverse-path"
	causeOwnFirewall   Cause = "own-firewall"
	causeNoRoute       Cause = "no-route"
	causeWireGuardKeys Cause = "wireguard-keys"
	causePeerDrops     Cause = "peer-drops"
	causeUnknown       Cause = "unknown"
	causeNotForwarding Cause = "peer-not-forwarding"
)

// diagnose returns the likely cause if the path does not work, else "". The order
// matters: each step relies on what the ones before it exclude. A test has left a device if
// its packet was seen there, and has arrived if an answer was, before any firewall.
func (p Path) diagnose() Cause {
	inner := p.Inner.Result == Answered
	switch {
	case p.Problem != "": // the path could not be tested
		return ""
	case p.Underlay == "" || p.Kind == "" || len(p.Astray) > 0:
		return causeNoRoute
	case p.NotForwarding: // the tests below would find a cloud that drops packets of pods
		return causeNotForwarding
	case inner:
		return p.diagnoseAnswering()
	case !p.mustAnswer():
		return ""
	case p.Inner.arrived(): // but did not get to the program
		return p.lostHere()
	case p.Neighbour == NeighbourDown && p.Host.Result == Silent:
		return causePeerDown // before the next one, because the kernel then sends nothing
	case !dataplane.TraitsOfBackend(p.Kind).Keys && !p.Inner.left(p.Underlay) && !p.Frame.arrived():
		return causeOwnFirewall // not with keys: such a tunnel sends nothing before it has agreed on them
	case p.AnswerMAC != "" && p.AnswerMAC != p.PublishedMAC:
		return causeMACMismatch
	case p.Rejected == RejectedClosed:
		return causePortClosed
	case p.Rejected == RejectedProhibited:
		return causePortFiltered
	case p.Frame.arrived():
		return causeUnknown // the peer answers, but not what the kernel sends
	case p.ARP.arrived() || p.Broadcast.arrived() || p.Handshake: // the tunnel works
		return causePeerDrops
	case p.Host.Result == Silent:
		return causePeerDown
	case p.Kind == PathDirect:
		return causeCloudRoute
	case p.Refused:
		return causeWireGuardKeys
	case p.Host.Result == Answered:
		return causePortFiltered
	}
	return causeUnknown
}

// diagnoseAnswering finds what is wrong although small packets are answered.
func (p Path) diagnoseAnswering() Cause {
	switch {
	case p.OfPod.Result == Silent && p.OfPod.left(p.Underlay):
		return causeCloudRoute
	case p.Full.Result == Silent && p.Largest > 0:
		return causeMTU
	case p.TCP.Result == Silent && p.TCP.left(p.Underlay) && p.FrameTCP.Result == Answered:
		return causeChecksum
	}
	return ""
}

// lostHere returns why answers that arrived on a device did not reach the program.
func (p Path) lostHere() Cause {
	if p.ReversePath > 0 && p.Filters[p.Inner.lastArrived()] != 0 {
		return causeReversePath
	}
	return causeOwnFirewall
}

// LostOn returns the device on which this node lost an answer that had arrived there: its
// value in Filters and ReversePath, which need not be known yet, decide why. "": the cause, if
// there is one, does not depend on them.
func (p Path) LostOn() string {
	switch p.diagnose() {
	case causeReversePath, causeOwnFirewall: // see lostHere; without an arrived answer, another step has found the firewall
		return p.Inner.lastArrived()
	}
	return ""
}

// mustAnswer reports whether silence is a problem. Unless the peer is Expected to answer, it
// is none with a Windows node, and none without a tunnel (DirectRouting, host-gw): the
// peer's firewall may drop pings.
func (p Path) mustAnswer() bool {
	windows := strings.HasPrefix(p.PublishedMAC, "00:15:5d:") // Hyper-V's
	return p.Expected || p.Kind != PathDirect && !windows
}
