package status

import (
	"net/netip"
	"time"
)

// ReachState is whether packets reach a peer and come back. Its values are part
// of the format of the Report, and are printed as they are.
type ReachState string

const (
	// Reachable means that the peer answers through the tunnel, or from its pods' bridge.
	Reachable ReachState = "reachable"
	// Unproven means that the peer's host answers at its PublicIP, and nothing is known
	// of the way of the pods' packets.
	Unproven ReachState = "unproven"
	// NotForwarding means that the peer answers, but does not forward packets from or to
	// its pods.
	NotForwarding ReachState = "not-forwarding"
	// Unreachable means that nothing comes back: neither answers nor the peer's own
	// probes.
	Unreachable ReachState = "unreachable"
	// OneWay means that one direction works: the peer's probes arrive here, but it
	// does not answer ours, or says that it hears none.
	OneWay ReachState = "one-way"
	// SmallOnly means that the peer answers small packets, but none of the full size
	// of the pods' MTU.
	SmallOnly ReachState = "mtu"
	// UnknownReach means that nothing can be said, for example because the peer's
	// entries are not in the kernel yet, or the underlay of this node is down.
	UnknownReach ReachState = "unknown"
)

// Via is which way a probe takes.
type Via string

const (
	// ViaTunnel is to the address of the peer's tunnel device.
	ViaTunnel Via = "tunnel"
	// ViaPods is to an address of the peer in its subnet, without a tunnel device.
	ViaPods Via = "pods"
	// ViaUnderlay is to the peer's PublicIP, which says nothing about the tunnel.
	ViaUnderlay Via = "underlay"
)

// Reach is what probes found about a peer. With several address families it is
// that of the worst one. Zero times: never since the daemon started, or since the
// peer's lease changed.
type Reach struct {
	State    ReachState `json:"state"`
	Via      Via        `json:"via"`
	Target   netip.Addr `json:"target"`
	Since    time.Time  `json:"since"` // of the last change of State
	Probed   time.Time  `json:"probed,omitzero"`
	Answered time.Time  `json:"answered,omitzero"`
	Heard    time.Time  `json:"heard,omitzero"` // when the peer's own probe arrived last
	RTT      Duration   `json:"rtt,omitzero"`   // of the last answer
}

// Probes is what probes found about all peers.
type Probes struct {
	Peers map[ReachState]int // that are probed, by state

	// Requests since the start. Failed are those that could not be sent.
	Sent, Answered, Failed uint64
}
