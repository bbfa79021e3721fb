package path

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/pkg/status"
)

func peer(name, subnet, public string, state status.ReachState) status.Peer {
	p := status.Peer{Name: name, State: status.UpToDate, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)},
		PublicIPs: []netip.Addr{netip.MustParseAddr(public)}}
	if state != "" {
		p.Reach = &status.Reach{State: state}
	}
	return p
}

// Peers that are not reached come first, one of each state, and those of which nothing is
// known never.
func TestChoose(t *testing.T) {
	peers := []status.Peer{peer("up", "10.5.1.0/24", "192.0.2.1", status.Reachable), peer("a", "10.5.2.0/24", "192.0.2.2", status.Unreachable),
		peer("b", "10.5.3.0/24", "192.0.2.3", status.Unreachable), peer("c", "10.5.4.0/24", "192.0.2.4", status.Unreachable),
		peer("one", "10.5.5.0/24", "192.0.2.5", status.OneWay), peer("silent", "10.5.6.0/24", "192.0.2.6", status.UnknownReach),
		peer("rejected", "10.5.7.0/24", "192.0.2.7", status.Unreachable)}
	peers[6].State = status.Rejected
	unproven := peer("windows", "10.5.8.0/24", "192.0.2.8", status.Unproven)
	names := func(chosen []status.Peer) (list []string) {
		for _, p := range chosen {
			list = append(list, p.Name)
		}
		slices.Sort(list)
		return list
	}
	for range 20 {
		got := names(choose(peers, 3))
		if len(got) != 3 || !slices.Contains(got, "one") || slices.Contains(got, "up") || slices.Contains(got, "silent") || slices.Contains(got, "rejected") {
			t.Fatalf("chosen: %v", got)
		}
	}
	if got := names(choose(peers, 10)); !slices.Equal(got, []string{"a", "b", "c", "one", "up"}) {
		t.Errorf("of all: %v", got)
	}
	if got := names(choose(append(slices.Clone(peers), unproven), 5)); !slices.Equal(got, []string{"a", "b", "c", "one", "windows"}) {
		t.Errorf("before those that are reachable: %v", got)
	}
	if got := names(choose([]status.Peer{peer("old", "10.5.1.0/24", "192.0.2.1", "")}, 3)); !slices.Equal(got, []string{"old"}) {
		t.Errorf("of a daemon without probes: %v", got)
	}
}

func TestFind(t *testing.T) {
	peers := []status.Peer{peer("/coreos.com/network/subnets/10.5.1.0-24", "10.5.1.0/24", "192.0.2.1", ""), peer("node2", "10.5.2.0/24", "192.0.2.2", "")}
	for which, want := range map[string]string{"node2": "node2", "10.5.1.0-24": peers[0].Name, peers[0].Name: peers[0].Name, "10.5.2.0/24": "node2",
		"10.5.2.7": "node2", "10.5.1.9": peers[0].Name, "192.0.2.2": "node2"} {
		if p, err := Find(peers, which); err != nil || p.Name != want {
			t.Errorf("%s: %s, %v", which, p.Name, err)
		}
	}
	for _, which := range []string{"node3", "", "10.5.3.1", "10.5.0.0/16"} {
		if _, err := Find(peers, which); err == nil || !strings.Contains(err.Error(), "node2") || !strings.Contains(err.Error(), "--peer="+which) {
			t.Errorf("%s: %v", which, err)
		}
	}
}

// Without a way that can be tested, there is nothing to find: a peer that is asked for may be gone.
func TestTargets(t *testing.T) {
	report := func(backend string) status.Report {
		return status.Report{Node: &status.Node{Backend: backend, Underlay: status.Underlay{Name: "eth0"}},
			Peers: []status.Peer{peer("a", "10.5.1.0/24", "192.0.2.1", ""), peer("b", "10.5.2.0/24", "192.0.2.2", ""),
				peer("c", "10.5.3.0/24", "192.0.2.3", ""), peer("d", "10.5.4.0/24", "192.0.2.4", "")}}
	}
	for backend, tested := range map[string]bool{"vxlan": true, "wireguard": true, "host-gw": true, "ipip": true, "udp": true,
		"ipsec": false, "alloc": false, "extension": false} {
		r := report(backend)
		if targets, err := Targets(r, ""); err != nil || tested != (len(targets) == maxTested) || !tested && targets != nil {
			t.Errorf("%s: %v, %v", backend, targets, err)
		}
		if targets, err := Targets(r, "typo"); targets != nil || tested != (err != nil) {
			t.Errorf("%s, of an unknown peer: %v, %v", backend, targets, err)
		}
		targets, err := Targets(r, "c")
		if err != nil || tested != (len(targets) == 1) {
			t.Errorf("%s, of a peer: %v, %v", backend, targets, err)
		}
		if tested && (targets[0].Peer != "c" || !targets[0].Expected || targets[0].Underlay != "eth0") {
			t.Errorf("%s: %+v", backend, targets[0])
		}
	}
	if targets, err := Targets(status.Report{}, "typo"); targets != nil || err != nil {
		t.Errorf("without a node: %v, %v", targets, err)
	}
}
