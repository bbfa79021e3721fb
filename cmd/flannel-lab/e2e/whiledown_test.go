package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// setup is a network configuration, and flanneld's flags.
type setup struct {
	network string   // of IPv4; "": lab.Network4
	rest    string   // of the configuration: the value of Backend, and keys behind it
	flags   []string // beside those of the lab, such as --ip-masq
	moves   bool     // it gives nodes subnets that others do not, so that those of a first start with it are not known before
}

func (s setup) config() string {
	network := s.network
	if network == "" {
		network = lab.Network4
	}
	return fmt.Sprintf(`{"Network":"%s","Backend":%s}`, network, s.rest)
}

func (s setup) String() string { return s.config() + " " + strings.Join(s.flags, " ") }

// dual are the keys of a configuration that turn IPv6 on.
const dual = `,"EnableIPv6":true,"IPv6Network":"` + lab.Network6 + `"`

// setups differ from their neighbours in options of one backend, and in flags. Together they have each option and flag of
// which the kernel has something, and that needs no module.
var setups = []setup{
	{rest: `{"Type":"vxlan"}`},
	{rest: `{"Type":"vxlan","Port":4789,"GBP":true,"MTU":1400},"EnableNFTables":true`},
	{rest: `{"Type":"vxlan","Learning":true},"Guard":"enforce","GuardTrial":0`, flags: []string{"--ip-masq-fully-random-disable"}},
	{rest: `{"Type":"vxlan","DirectRouting":true}`, flags: []string{"--ip-blackhole-route", "--guard=off", "--ip-masq=false"}},
	{rest: `{"Type":"vxlan","DirectRouting":true}` + dual, moves: true},
	{rest: `{"Type":"vxlan"}` + dual, moves: true},
	{rest: `{"Type":"vxlan","VNI":7}`, flags: []string{"--iptables-forward-rules=false"}},
	{rest: `{"Type":"vxlan"}`, network: "10.9.0.0/16", moves: true},
	{rest: `{"Type":"host-gw"}`, flags: []string{"--ip-masq=false", "--iptables-forward-rules=false"}},
	{rest: `{"Type":"wireguard"}`},
	{rest: likeHostGW}, // before and behind wireguard, which has no routes of this form
	{rest: `{"Type":"wireguard","PSK":"cHJlc2hhcmVkLWtleS1vZi10aGlydHktdHdvLWJ5dGU=","PersistentKeepaliveInterval":5,"ListenPort":51900,"MTU":1400}`},
	{rest: `{"Type":"wireguard"}` + dual, moves: true},
	{rest: `{"Type":"wireguard","Mode":"auto"}` + dual, moves: true},
	{rest: `{"Type":"wireguard","Mode":"auto"}`, network: "10.9.0.0/16", moves: true},
	{rest: `{"Type":"udp"}`},
	{rest: `{"Type":"udp","Port":8300},"EnableNFTables":true`},
	{rest: `{"Type":"udp"}`, network: "10.9.0.0/16", moves: true},
	{rest: allocOnly},
}

// TestChangedWhileDown changes the configuration and the flags of nodes while flanneld does not run on them. Afterwards, they
// have the same as nodes on which flanneld has only run with these.
func TestChangedWhileDown(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 2, Family: lab.Dual})
	for _, n := range l.Nodes {
		// What stays behind IPv6, also after cleanup: forwarding, and the tables of ip6tables, which are empty.
		in(t, n.Namespaces, `sysctl -qw net.ipv6.conf.all.forwarding=1
			for table in nat filter; do ip6tables -t $table -N once; ip6tables -t $table -X once; done`)
	}
	begin := func(s setup) {
		t.Helper()
		must(t, l.SetConfig(t.Context(), s.config()))
		must(t, l.StartAll(t.Context(), s.flags...))
		for _, n := range l.Nodes {
			if s.rest != allocOnly { // which has no peers
				hasPeers(t, n, 1)
			}
		}
		within(t, "each node has one lease", func() error {
			if all := leases(t, l); len(all) != len(l.Nodes) {
				return fmt.Errorf("they are %v", all)
			}
			return nil
		})
	}
	fresh := map[string][]string{} // what the nodes have, by setup
	for _, s := range setups {
		if s.moves {
			continue
		}
		begin(s)
		for _, n := range l.Nodes {
			has, err := belongings(t.Context(), n, "")
			must(t, err)
			fresh[s.String()] = append(fresh[s.String()], has)
			stopped(t, n)
			in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
			if s.rest == likeHostGW { // cleanup does not touch what commands made
				in(t, n.Namespaces, "ip route flush root 10.5.0.0/16 proto boot")
			}
		}
	}
	way := append([]setup{}, setups...)
	for i := range setups { // and back
		way = append(way, setups[len(setups)-1-i])
	}
	for _, s := range way {
		for _, n := range l.Nodes {
			if n.Running() {
				must(t, n.Kill())
			}
		}
		begin(s)
		for i, n := range l.Nodes {
			if s.rest == likeHostGW { // with which the former backend's device stays
				in(t, n.Namespaces, "ip link delete flannel-wg")
			}
			if !s.moves {
				want := fresh[s.String()][i]
				eventually(t, n.Name+" after a start with "+s.String(), want, func(ctx context.Context) (string, error) { return belongings(ctx, n, want) })
			}
		}
	}
}

// A peer has another port since before this node started: its packets go there, although the session by the former port lasts.
// The peer does not send anything by itself.
func TestWireGuardPeerMovedWhileDown(t *testing.T) {
	t.Parallel()
	const silent = "--probe=false"
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"wireguard"}`, silent)
	n, peer := l.Nodes[0], l.Nodes[1]
	a, b := pair(t, l)
	const transfer = "wg show flannel-wg transfer"
	must(t, reach(t.Context(), a, b))
	before := in(t, peer.Namespaces, transfer)
	within(t, "n has confirmed the answer, so that the peer owes nothing and expects nothing", func() error {
		if now := in(t, peer.Namespaces, transfer); now == before {
			return fmt.Errorf("still %s", now)
		}
		return nil
	})
	must(t, n.Kill())
	must(t, peer.Kill())
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"wireguard","ListenPort":51900}`)))
	must(t, peer.Start(silent))
	must(t, peer.Ready(t.Context()))
	must(t, n.Start(silent))
	must(t, n.Ready(t.Context()))
	const session = 3 * time.Minute // for as long as WireGuard uses its keys
	withinOf(t, session/2, "pods reach each other", func() error {
		_, err := a.Reach(t.Context(), b.IP4, time.Second)
		return err
	})
}
