// Package status collects the state of a running daemon at a Board, and serves it: as one
// JSON document, made for each request, on a unix socket in the directory of the subnet
// file, and as liveness and readiness over HTTP. Package metrics renders the same report.
package status

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flannel/pkg/dataplane"
)

// Report is that document. Fields may be added, but none changes its meaning.
// Times are in RFC 3339, MTUs in bytes.
type Report struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"` // in the daemon's PID namespace
	Started time.Time `json:"started"`

	Ready   bool      `json:"ready"`             // the last pass left the network up to date
	Since   time.Time `json:"since"`             // of the last change of Ready
	Problem string    `json:"problem,omitempty"` // why it is not ready, or what the daemon waits for
	Store   string    `json:"store"`             // where leases are: "etcd" or "kubernetes"
	// Settings are absent in reports of earlier versions.
	Settings *Settings `json:"settings,omitempty"`

	Outage       string    `json:"outage,omitempty"`      // why the store is unavailable, or what it refuses; the network stays as it is
	OutageSince  time.Time `json:"outageSince,omitzero"`  // about when it answered last; absent: it answers, perhaps with a refusal
	LeaseExpires time.Time `json:"leaseExpires,omitzero"` // when the lease ends unless etcd renews it; absent: never, or not known yet

	Pending string `json:"pending,omitempty"` // why the latest network configuration is not in force
	Refused bool   `json:"refused,omitempty"` // this node has refused the configuration that Pending is about
	Advice  string `json:"advice,omitempty"`  // how to reach Windows nodes; independent of Ready

	Conflict string `json:"conflict,omitempty"` // other leases with this node's public IP; independent of Ready

	// LostPods are running pods without network, by their names: Windows only.
	LostPods []string `json:"lostPods,omitempty"`

	Node       *Node  `json:"node,omitempty"` // absent until the node has a subnet
	PeersKnown bool   `json:"peersKnown"`     // a complete set of peers was received
	Peers      []Peer `json:"peers"`

	Forwarded *dataplane.Forwarded `json:"forwarded,omitempty"` // with the backend udp, whose packets the daemon forwards

	Guard *dataplane.GuardReport `json:"guard,omitempty"` // absent: off, or not supported

	// Retained is absent if no peer is retained and the store has this node's
	// lease.
	Retained *Retained `json:"retained,omitempty"`

	Errors []Error `json:"errors"` // the last errors of passes, oldest first

	// The document does not have these.
	Counts Counts  `json:"-"` // of Peers, also in a report without them
	Probes *Probes `json:"-"` // nil: peers are not probed
}

// Counts are numbers of peers. Refused and Retained are part of Used.
type Counts struct {
	Used     int
	Rejected int
	Refused  int // the operating system refused an entry
	Retained int // the store has no lease any more
}

// Settings are the daemon's flags that say where leases are, for other commands on
// the same machine. One of the two is set. They contain no secrets; names of files
// are absolute.
type Settings struct {
	Etcd *Etcd `json:"etcd,omitempty"`
	Kube *Kube `json:"kubernetes,omitempty"`
}

// Etcd are the settings of the client of etcd.
type Etcd struct {
	Endpoints []string `json:"endpoints"` // URLs
	Prefix    string   `json:"prefix"`
	KeyFile   string   `json:"keyFile,omitempty"`
	CertFile  string   `json:"certFile,omitempty"`
	CAFile    string   `json:"caFile,omitempty"`
	Username  string   `json:"username,omitempty"`
}

// Kube are the settings of the client of the Kubernetes API. Without a URL and a
// kubeconfig it is the pod's service account.
type Kube struct {
	APIURL           string   `json:"apiURL,omitempty"`
	APIFrom          []string `json:"apiFrom,omitempty"` // kubeconfigs
	Kubeconfig       string   `json:"kubeconfig,omitempty"`
	AnnotationPrefix string   `json:"annotationPrefix"`
	NetConfPath      string   `json:"netConfPath"`
	NodeName         string   `json:"nodeName,omitempty"`
	PodName          string   `json:"podName,omitempty"`
	PodNamespace     string   `json:"podNamespace,omitempty"`
}

// Retained is about leases that the store lost together with many others: see
// flanneld accept-withdrawal.
type Retained struct {
	Count int       `json:"count"` // of peers
	Cause string    `json:"cause,omitempty"`
	Until time.Time `json:"until,omitzero"` // when the first of them are removed
	Own   bool      `json:"own"`            // this node's lease was withdrawn, too, and will be restored
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
	// UDPEncap means that ipsec sends all ESP in UDP; else only where there is NAT.
	UDPEncap bool `json:"udpEncap,omitempty"`
}

// Found describes the packets that the guard has dropped, and those that it has only
// counted, except those of nodes that joined; empty: there were none.
func Found(g *dataplane.GuardReport) (dropped, counted string) {
	var drops, counts []string
	for _, rule := range slices.Sorted(maps.Keys(g.Packets)) {
		d := min(g.Dropped[rule], g.Packets[rule])
		if d > 0 {
			drops = append(drops, fmt.Sprintf("%d %s", d, Printable(rule)))
		}
		if c := g.Packets[rule] - d - min(g.Joined[rule], g.Packets[rule]-d); c > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", c, Printable(rule)))
		}
	}
	return strings.Join(drops, ", "), strings.Join(counts, ", ")
}

// Network is the pod network of one address family and this node's lease in it.
type Network struct {
	Network  netip.Prefix    `json:"network"`
	Subnet   netip.Prefix    `json:"subnet"`
	PublicIP netip.Addr      `json:"publicIP"`
	Data     json.RawMessage `json:"backendData,omitempty"` // as published
}

// Underlay is the interface through which this node reaches the others.
type Underlay struct {
	Name  string       `json:"name"`
	Index int          `json:"index"`
	MTU   int          `json:"mtu"`
	Addrs []netip.Addr `json:"addresses"`
	// AtStart is the interface that flanneld would choose at a start; absent: this one.
	AtStart string `json:"atStart,omitempty"`
}

// Device is a network device of the system.
type Device struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	MTU   int    `json:"mtu"`
	MAC   string `json:"mac"` // empty: it has none
	// PublicKey is set for a WireGuard device.
	PublicKey string `json:"publicKey,omitempty"`
}

// State is the state of a peer. Its values are part of the format of the
// Report, and are printed as they are.
type State string

const (
	// UpToDate means that the operating system has all entries for the peer.
	UpToDate State = "in-step"
	// Behind means that the last pass could not set all entries for the peer:
	// see Peer.Reason if the operating system refused an entry of this peer,
	// otherwise Report.Problem.
	Behind State = "behind"
	// Pending means that the peer has reserved its subnet, but has not
	// published its backend data yet.
	Pending State = "silent"
	// RetainedPeer means that the peer is used although the store has lost its
	// lease: see Peer.Until.
	RetainedPeer State = "retained"
	// Rejected means that the peer's lease is invalid or in conflict with
	// another: see Peer.Reason.
	Rejected State = "left-out"
)

// Peer is another node.
type Peer struct {
	Name      string         `json:"name"` // the etcd key or the name of the Kubernetes node
	State     State          `json:"state"`
	Reason    string         `json:"reason,omitempty"` // with Rejected, and with Behind if the reason is the peer's own
	Subnets   []netip.Prefix `json:"subnets,omitempty"`
	PublicIPs []netip.Addr   `json:"publicIPs,omitempty"`
	Until     time.Time      `json:"until,omitzero"` // of a retained peer, even if its State is another: when it is removed
	// Tunnels are absent for backends whose tunnels know nothing of their peers.
	Tunnels []dataplane.TunnelReport `json:"tunnels,omitempty"`
	// Reach is absent if the daemon does not probe the peer.
	Reach *Reach `json:"reach,omitempty"`
}

// Error is an error of one part of a pass.
type Error struct {
	Part  string    `json:"part"` // as in the metric flanneld_errors_total
	Text  string    `json:"text"`
	Count int       `json:"count"` // of passes with this error
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

// Socket returns the path of the socket of the daemon with that subnet file.
func Socket(subnetFile string) string { return beside(subnetFile, ".sock") }

// Lock is the file that a daemon with that subnet file holds for as long as it
// runs.
func Lock(subnetFile string) string { return beside(subnetFile, ".lock") }

// beside names a file of the daemon's. Several daemons may have their subnet
// files in one directory.
func beside(subnetFile, extension string) string {
	dir, name := filepath.Split(subnetFile)
	if name == "subnet.env" {
		name = "flanneld"
	}
	return filepath.Join(dir, name+extension)
}
