// Package status is what a running daemon tells those on its own machine: one JSON document, made when somebody asks,
// over a unix socket beside the subnet file.
package status

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"time"
)

// Report is the document. Fields may be added to it; none changes its meaning. Times are RFC 3339, MTUs bytes.
type Report struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"` // in the daemon's PID namespace
	Started time.Time `json:"started"`

	Ready   bool      `json:"ready"`             // the last pass left the network in step
	Since   time.Time `json:"since"`             // it has been ready, or not ready, since then
	Problem string    `json:"problem,omitempty"` // what is not in step, or what the daemon waits for
	Store   string    `json:"store"`             // where leases are: "etcd" or "kubernetes"
	Outage  string    `json:"outage,omitempty"`  // why it cannot be asked; the network stays as it is
	Pending string    `json:"pending,omitempty"` // what the network configuration that was offered last waits for
	Advice  string    `json:"advice,omitempty"`  // what to change for the sake of Windows nodes, although all is in step here

	Node       *Node  `json:"node,omitempty"` // absent until the node has a subnet
	PeersKnown bool   `json:"peersKnown"`     // the set of peers was complete at least once
	Peers      []Peer `json:"peers"`

	Retained *Retained `json:"retained,omitempty"` // absent while no peer is retained and our lease is there

	Errors []Error `json:"errors"` // the last that passes met, oldest first
}

// Retained is about leases that the store lost together with many others: see flanneld accept-withdrawal.
type Retained struct {
	Count int       `json:"count"` // of peers
	Cause string    `json:"cause,omitempty"`
	Until time.Time `json:"until,omitzero"` // the first of them stay no longer
	Own   bool      `json:"own"`            // this node's own lease was withdrawn, too, and is put back
}

// Node is this node's part of the network, as of the last pass.
type Node struct {
	Backend    string    `json:"backend"`
	Networks   []Network `json:"networks"` // one for each family in use
	Underlay   Underlay  `json:"underlay"`
	Devices    []Device  `json:"devices"` // those that the backend routes through, the underlay included
	MTU        int       `json:"mtu"`     // of pods (FLANNEL_MTU)
	IPMasq     bool      `json:"ipMasq"`
	NFTables   bool      `json:"nftables"` // else iptables
	SubnetFile string    `json:"subnetFile"`
	LastPass   time.Time `json:"lastPass"`
	Took       Duration  `json:"took"` // of the last pass
}

// Network is the pod network of one family and this node's lease in it.
type Network struct {
	Network  netip.Prefix    `json:"network"`
	Subnet   netip.Prefix    `json:"subnet"`
	PublicIP netip.Addr      `json:"publicIP"`
	Data     json.RawMessage `json:"backendData,omitempty"` // as published
}

// Underlay is the interface on which this node meets the others.
type Underlay struct {
	Name  string       `json:"name"`
	Index int          `json:"index"`
	MTU   int          `json:"mtu"`
	Addrs []netip.Addr `json:"addresses"`
}

// Device is one that the kernel has.
type Device struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	MTU   int    `json:"mtu"`
	MAC   string `json:"mac"`
}

// State is how a peer is.
type State string

const (
	// InStep means that all that leads to the peer is in the kernel.
	InStep State = "in-step"
	// Behind means that the peer is used, and that the last pass could not do all that it should: see Peer.Reason where
	// the system refuses what leads to this peer, else Report.Problem.
	Behind State = "behind"
	// Silent means that the peer has claimed its subnet and has yet to say how it is reached.
	Silent State = "silent"
	// RetainedPeer means that the peer is used although the store no longer has it: see Peer.Until.
	RetainedPeer State = "retained"
	// LeftOut means that the peer's lease cannot be believed: see Peer.Reason.
	LeftOut State = "left-out"
)

// Peer is another node.
type Peer struct {
	Name      string         `json:"name"` // the etcd key or the name of the Kubernetes node
	State     State          `json:"state"`
	Reason    string         `json:"reason,omitempty"` // why it is left out or behind
	Subnets   []netip.Prefix `json:"subnets,omitempty"`
	PublicIPs []netip.Addr   `json:"publicIPs,omitempty"`
	Until     time.Time      `json:"until,omitzero"` // a retained peer stays no longer
}

// Error is one that passes met.
type Error struct {
	Part  string    `json:"part"` // as in the metric flanneld_errors_total
	Text  string    `json:"text"`
	Count int       `json:"count"` // how many passes met it
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Duration is a time.Duration that JSON shows as "1.5ms".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Socket is where a daemon with that subnet file is asked.
func Socket(subnetFile string) string { return beside(subnetFile, ".sock") }

// Lock is the file that a daemon with that subnet file holds for as long as it runs.
func Lock(subnetFile string) string { return beside(subnetFile, ".lock") }

// beside names a file of the daemon's. Several daemons may have their subnet files in one directory.
func beside(subnetFile, extension string) string {
	dir, name := filepath.Split(subnetFile)
	if name == "subnet.env" {
		name = "flanneld"
	}
	return filepath.Join(dir, name+extension)
}
