package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// peer is a lease as flannel writes it.
type peer struct {
	key           string `json:"-"`
	PublicIP      string
	PublicIPv6    *string
	BackendType   string
	BackendData   *vtep `json:",omitempty"`
	BackendV6Data *vtep `json:",omitempty"`
}

type vtep struct {
	VNI     int
	VtepMAC string
}

// member is a real node: its lease, and state of the start that must not change.
type member struct {
	peer
	env      string          // contents of subnet.env
	firewall map[bool]string // rules by nft
}

// newPeer returns the lease of a peer that is not a real node. i must be below
// 120.
func (s *soak) newPeer(i, generation int) peer {
	p := peer{key: fmt.Sprintf("10.5.%d.0-24", i), PublicIP: fmt.Sprintf("192.168.100.%d", 100+(i+generation*7)%150),
		BackendType: s.backend}
	mac := func(family int) *vtep {
		return &vtep{1, fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", family, generation>>8&255, generation&255, i)}
	}
	if s.backend == "vxlan" {
		p.BackendData = mac(4)
	}
	if s.family.Has6() {
		six := fmt.Sprintf("fd00:100::%x:%x", generation%64+1, i)
		p.key, p.PublicIPv6 = fmt.Sprintf("%s&fd05:0:0:%x::-64", p.key, i), &six
		if s.backend == "vxlan" {
			p.BackendV6Data = mac(6)
		}
	}
	return p
}

// readMembers reads the leases, subnet.env and firewall rules of the nodes
// before anything has happened.
func (s *soak) readMembers(t *testing.T) {
	t.Helper()
	leases, err := s.Leases(t.Context())
	must(t, err)
	for _, n := range s.Nodes {
		m := member{firewall: map[bool]string{}}
		for key, text := range leases {
			if strings.Contains(text, `"`+n.IP4.String()+`"`) {
				must(t, json.Unmarshal([]byte(text), &m.peer))
				m.key = key
			}
		}
		if m.key == "" {
			t.Fatalf("%s has no lease: %v", n.Name, leases)
		}
		m.env, err = n.Run(t.Context(), "cat", "/run/flannel/subnet.env")
		must(t, err)
		s.members = append(s.members, m)
	}
	for range 2 { // read the rules of both kinds before anything changes them
		for i, n := range s.Nodes {
			_, err := machine.Until(t.Context(), timeout, func(ctx context.Context) error {
				rules, err := firewall(ctx, n, s.nft)
				other, err2 := firewall(ctx, n, !s.nft)
				four, six, _ := strings.Cut(strings.ReplaceAll(s.members[i].key, "-", "/"), "&")
				whole := strings.Contains(rules, four) && strings.Contains(rules, six)
				if err == nil && (err2 != nil || len(other) > 0 || !whole || rules != s.members[i].firewall[s.nft]) {
					err = fmt.Errorf("the rules are %q, those of the other kind %q (%v)", rules, other, err2)
					time.Sleep(300 * time.Millisecond) // longer than writing all rules takes
				}
				s.members[i].firewall[s.nft] = rules
				return err
			})
			must(t, err)
		}
		s.nft = !s.nft
		must(t, s.configure(t.Context()))
	}
}

// reread reads the leases of the nodes again. Subnets and addresses must not
// have changed. The MAC may have: if somebody changes that of a device while no
// daemon runs, the next daemon keeps and publishes it.
func (s *soak) reread(ctx context.Context) error {
	leases, err := s.Leases(ctx)
	if err != nil {
		return err
	}
	for i := range s.members {
		m := &s.members[i]
		before := m.peer
		m.BackendData, m.BackendV6Data = nil, nil
		if err := json.Unmarshal([]byte(leases[m.key]), &m.peer); err != nil {
			return fmt.Errorf("%s holds %q: %w", m.key, leases[m.key], err)
		}
		if m.PublicIP != before.PublicIP || (m.BackendData == nil) != (before.BackendData == nil) ||
			(m.BackendV6Data == nil) != (before.BackendV6Data == nil) {
			return fmt.Errorf("%s holds %s", m.key, leases[m.key])
		}
	}
	return nil
}

// want returns the state that a node should have, derived from the leases only:
// the entries in its kernel and the contents of subnet.env.
func (s *soak) want(node int) string {
	var lines []string
	add := func(p peer) {
		four, six, dual := strings.Cut(p.key, "&")
		lines = append(lines, s.paths(four, "flannel.1", p.PublicIP, p.BackendData)...)
		if dual {
			lines = append(lines, s.paths(six, "flannel-v6.1", *p.PublicIPv6, p.BackendV6Data)...)
		}
	}
	for i, m := range s.members {
		if i != node {
			add(m.peer)
		}
	}
	for _, p := range s.peers {
		add(p)
	}
	own := s.members[node]
	four, six, _ := strings.Cut(own.key, "&")
	if own.BackendData != nil {
		lines = append(lines, device("flannel.1", four, own.BackendData, s.family)...)
	}
	if own.BackendV6Data != nil {
		lines = append(lines, device("flannel-v6.1", six, own.BackendV6Data, s.family)...)
	}
	lines = append(lines, "forwarding 1")
	if s.family.Has6() {
		lines = append(lines, "forwarding6 1")
	}
	lines = append(lines, strings.Split(strings.TrimSpace(own.env), "\n")...)
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") // peers with the same gateway share a nexthop object
}

// paths returns the entries for one peer in one address family.
func (s *soak) paths(key, device, public string, data *vtep) []string {
	base, _, _ := strings.Cut(key, "-")
	dst := strings.Replace(key, "-", "/", 1)
	if data == nil {
		return []string{fmt.Sprintf("route %s via %s dev eth0", dst, public),
			fmt.Sprintf("nexthop via %s dev eth0", public)}
	}
	return []string{
		fmt.Sprintf("route %s via %s dev %s onlink", dst, base, device),
		fmt.Sprintf("nexthop via %s dev %s onlink", base, device),
		fmt.Sprintf("neigh %s %s lladdr %s PERMANENT", device, base, data.VtepMAC),
		fmt.Sprintf("fdb %s %s dst %s self permanent", device, data.VtepMAC, public),
	}
}

// device returns the entries for a tunnel device.
func device(name, key string, data *vtep, family lab.Family) []string {
	base, _, _ := strings.Cut(key, "-")
	inet, length, mtu := "inet", 32, 1450
	if strings.Contains(base, ":") {
		inet, length = "inet6", 128
	}
	if family.Has6() {
		mtu = 1430
		if inet == "inet" {
			mtu = 1450
		}
	}
	return []string{fmt.Sprintf("addr %s %s %s/%d", name, inet, base, length),
		fmt.Sprintf("link %s up mtu %d %s", name, mtu, data.VtepMAC)}
}

// readState reads the state of a node in the form of want.
func (s *soak) readState(ctx context.Context, n *lab.Node) (string, error) {
	out, err := n.Run(ctx, "sh", "-c", `
		ip -4 route show | grep -v -e 'proto kernel' -e ^default -e ' dev cni0' | sed 's/^/route /'
		ip -6 route show | grep -v -e 'proto kernel' -e ^default -e ^fe80 -e ^multicast -e ' dev cni0' | sed 's/^/route /'
		ip nexthop show | sed 's/^id [0-9]* /nexthop /'
		for path in /sys/class/net/flannel*; do
			[ -e "$path" ] || continue
			dev=${path##*/}
			ip neigh show dev $dev nud permanent | sed "s/^/neigh $dev /"
			bridge fdb show dev $dev | grep permanent | sed "s/^/fdb $dev /"
			ip -o addr show dev $dev scope global | awk '{print "addr", $2, $3, $4}'
			ip -o link show dev $dev up | sed 's/.* mtu \([0-9]*\).* link.ether \([0-9a-f:]*\).*/link '$dev' up mtu \1 \2/'
		done
		echo forwarding $(cat /proc/sys/net/ipv4/ip_forward)
		`+map[bool]string{true: "echo forwarding6 $(cat /proc/sys/net/ipv6/conf/all/forwarding)"}[s.family.Has6()]+`
		cat /run/flannel/subnet.env`)
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.Join(strings.Fields(noise.ReplaceAllString(strings.TrimSpace(line), "")), " ")
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

// noise matches what may differ between two equal states.
var noise = regexp.MustCompile(`nhid \d+ |proto 70|metric 1024|pref medium|scope link|linkdown`)

// checkRules checks the firewall rules, /readyz and the numbers of peers in
// /metrics.
func (s *soak) checkRules(ctx context.Context, n *lab.Node) error {
	i := slices.Index(s.Nodes, n)
	rules, err := firewall(ctx, n, s.nft)
	if err != nil {
		return err
	}
	if want := s.members[i].firewall[s.nft]; rules != want {
		return fmt.Errorf("the rules of %s (- unexpected, + missing):\n%s", n.Name, difference(rules, want))
	}
	if other, err := firewall(ctx, n, !s.nft); err != nil || other != "" {
		return fmt.Errorf("%s also has rules of the other kind: %s (%v)", n.Name, other, err)
	}
	code, body, err := n.Ask(ctx, "/readyz")
	if err == nil && code != 200 {
		err = fmt.Errorf("%s: /readyz: %d %s", n.Name, code, body)
	}
	if err != nil {
		return err
	}
	_, body, err = n.Ask(ctx, "/metrics")
	peers := fmt.Sprintf("\nflanneld_peers %d\n", len(s.peers)+len(s.Nodes)-1)
	invalid := fmt.Sprintf("\nflanneld_invalid_peers %d\n", len(s.rogues))
	if err == nil && (!strings.Contains(body, peers) || !strings.Contains(body, invalid)) {
		err = fmt.Errorf("%s: /metrics lacks %q or %q", n.Name, peers, invalid)
	}
	return err
}

// firewall returns flannel's rules of one kind on a node.
func firewall(ctx context.Context, n *lab.Node, nft bool) (string, error) {
	// The order is fixed here, because the kernel lists tables in the order of
	// their creation.
	script := `for f in iptables ip6tables; do for t in nat filter; do $f-save -t $t; done; done 2>/dev/null | grep -e FLANNEL -e flanneld`
	if nft {
		script = `for t in "ip flannel-ipv4" "ip6 flannel-ipv6"; do nft list table $t; done 2>/dev/null | sed 's/packets [0-9]* bytes [0-9]*//'`
	}
	out, err := n.Run(ctx, "sh", "-c", script+" || true")
	return regexp.MustCompile(`\[\d+:\d+\]`).ReplaceAllString(out, ""), err
}

// difference returns the lines that only one of the texts has, for a failure
// message.
func difference(got, want string) string {
	var out []string
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	if len(out) == 0 {
		return "only the order or the number of lines:\n" + got
	}
	if len(out) > 60 {
		out = append(out[:60], fmt.Sprintf("… and %d more", len(out)-60))
	}
	return strings.Join(out, "\n")
}
