package dataplane

// This file has the parts of the status report that the drivers fill: each fact is declared here once, and the status
// socket, the metrics and the doctor render these types. The whole document is in package status.

import (
	"net/netip"
	"time"
)

// Forwarded counts the packets of pods that the daemon forwarded since its start.
type Forwarded struct {
	Sent     Flow              `json:"sent"`
	Received Flow              `json:"received"`
	Dropped  map[string]uint64 `json:"dropped"` // by reason: "malformed", "foreign", "unreachable", "expired", "failed"
}

// Flow is what went in one direction, without outer headers.
type Flow struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// GuardReport is what guards the pod network against packets of others.
type GuardReport struct {
	Enforce bool              `json:"enforce"`           // it drops packets; else it only counts them
	Waiting string            `json:"waiting,omitempty"` // why it does not enforce although it should
	Problem string            `json:"problem,omitempty"` // why it does not work as it should
	Packets map[string]uint64 `json:"packets"`           // by rule: "outsider", "pod", "impostor", "inner", "spoofed"
	Dropped map[string]uint64 `json:"dropped,omitempty"` // those of them that were dropped; the others were only counted
	// Joined are those of Packets that were not dropped, and came from nodes whose leases
	// were not known yet.
	Joined map[string]uint64 `json:"joined,omitempty"`
	OfPeer string            `json:"ofPeer,omitempty"` // one of them, of the last minutes, with the address of a peer's pod
}

// TunnelReport is what WireGuard or IPsec knows about a peer, as of some seconds ago. A peer has
// one, or one for each address family.
type TunnelReport struct {
	Endpoint  netip.AddrPort `json:"endpoint"`           // where packets are sent, with IPsec those of IKE; with NAT not what the peer publishes
	Handshake time.Time      `json:"handshake,omitzero"` // the last one, with IPsec since when there are keys; absent: none yet
	Received  int64          `json:"received"`           // bytes
	Sent      int64          `json:"sent"`               // bytes
}
