// This file says which peers the doctor tests, and how they are reached, from the
// daemon's status report. Package probe (paths_linux.go) calls Targets, and the command
// doctor calls Find for its option --peer.

package path

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
)

// Find returns the peer with that name, subnet or address, which may be one in its
// subnet. The error names the peers that there are.
func Find(peers []status.Peer, which string) (status.Peer, error) {
	var names []string
	addr, addrErr := netip.ParseAddr(which)
	prefix, prefixErr := netip.ParsePrefix(which)
	for _, p := range peers {
		_, last, _ := strings.Cut(p.Name, "/subnets/") // of a key in etcd
		switch {
		case which == p.Name, which != "" && which == last,
			prefixErr == nil && slices.Contains(p.Subnets, prefix.Masked()),
			addrErr == nil && (slices.Contains(p.PublicIPs, addr) ||
				slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(addr) })):
			return p, nil
		}
		names = append(names, p.Name)
	}
	const most = 10
	if n := len(names) - most; n > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", n))
	}
	if len(names) == 0 {
		return status.Peer{}, fmt.Errorf("--peer=%s: the daemon knows no peers", which)
	}
	return status.Peer{}, fmt.Errorf("--peer=%s: there is no such peer; use a name, subnet or address of: %s", which, strings.Join(names, ", "))
}

// noReach is the state of peers that the daemon does not probe.
const noReach status.ReachState = ""

// reach returns the daemon's state of the connection to a peer.
func reach(p status.Peer) status.ReachState {
	if p.Reach == nil {
		return noReach
	}
	return p.Reach.State
}

// failing are the states of peers that have to answer and do not.
var failing = []status.ReachState{status.Unreachable, status.OneWay, status.NotForwarding, status.SmallOnly}

// choose returns up to n peers to test: those that the daemon does not reach, taking
// turns between the states, then those whose pods' way it cannot prove, and then others
// by chance. It leaves out those that do not have to answer: peers that are rejected,
// pending (they have published nothing yet) or behind (not all of their entries are in
// the kernel), and those of which the daemon can say nothing (UnknownReach). A retained peer,
// whose lease the store has lost, is in use like the others.
func choose(peers []status.Peer, n int) (chosen []status.Peer) {
	byState := map[status.ReachState][]status.Peer{}
	for _, i := range rand.Perm(len(peers)) {
		if p := peers[i]; p.State == status.UpToDate || p.State == status.RetainedPeer {
			byState[reach(p)] = append(byState[reach(p)], p)
		}
	}
	for more := true; more; {
		more = false
		for _, state := range failing {
			if list := byState[state]; len(list) > 0 {
				chosen, byState[state], more = append(chosen, list[0]), list[1:], true
			}
		}
	}
	chosen = slices.Concat(chosen, byState[status.Unproven], byState[status.Reachable], byState[noReach])
	return chosen[:min(n, len(chosen))]
}

// maxTested limits the peers to which packets are sent.
const maxTested = 3

// Targets returns the ways to the peer that is asked for (see Find, whose error it returns), or, with "", to some. There
// are none without a node, and none with a backend whose packets leave neither through a tunnel device nor, as with
// host-gw, to the peer as their gateway.
func Targets(r status.Report, asked string) (targets []Target, err error) {
	// Links are the types of a backend's tunnel devices. Node is nil until the node has a subnet.
	if r.Node == nil || r.Node.Backend != "host-gw" && dataplane.TraitsOfBackend(r.Node.Backend).Links == nil {
		return nil, nil
	}
	peers := choose(r.Peers, maxTested)
	if asked != "" {
		peer, err := Find(r.Peers, asked)
		if err != nil {
			return nil, err
		}
		peers = []status.Peer{peer}
	}
	for _, p := range peers {
		targets = append(targets, targetsOf(*r.Node, p, asked != "")...)
	}
	return targets, nil
}

// targetsOf returns the ways to a peer, one for each family.
func targetsOf(n status.Node, p status.Peer, asked bool) (targets []Target) {
	for _, s := range p.Subnets {
		t := Target{Peer: p.Name, Subnet: s, Expected: asked, Addrs: n.Underlay.Addrs, Underlay: n.Underlay.Name}
		if slices.Contains(failing, reach(p)) {
			t.Expected, t.Since, t.Blocked = true, p.Reach.Since, p.Reach.State == status.NotForwarding
		}
		for _, network := range n.Networks {
			if network.Network.Contains(s.Addr()) {
				t.Own, t.Port = network.Subnet, publishedPort(network)
			}
		}
		for _, a := range p.PublicIPs { // that of the subnet's family, or else any
			if a.IsValid() && (!t.PublicIP.IsValid() || a.Is6() == s.Addr().Is6()) {
				t.PublicIP = a
			}
		}
		for _, d := range n.Devices {
			t.Devices = append(t.Devices, d.Name)
		}
		// What WireGuard knows of the peer: one tunnel, or one for each family.
		for _, tunnel := range p.Tunnels {
			if t.Endpoint.IsValid() && tunnel.Endpoint.Addr().Is6() != s.Addr().Is6() {
				continue
			}
			if t.Endpoint = tunnel.Endpoint; t.Endpoint.IsValid() {
				t.Port, t.PublicIP = t.Endpoint.Port(), t.Endpoint.Addr()
			}
			t.Handshake = tunnel.Handshake
		}
		if t.PublicIP.IsValid() {
			targets = append(targets, t)
		}
	}
	return targets
}

// publishedPort returns the port in the lease data that this node publishes, which with
// WireGuard most nodes have; 0: none. A tunnel's endpoint, if the daemon reports it,
// has the peer's own port.
func publishedPort(n status.Network) uint16 {
	var published struct{ Port uint16 }
	if json.Unmarshal(n.Data, &published) != nil {
		return 0
	}
	return published.Port
}
