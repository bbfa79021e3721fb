package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
)

const subnets = "/coreos.com/network/subnets/"

// action is a random event. do returns what it did; "" if the event is not
// possible at the moment.
type action struct {
	name   string
	weight int
	do     func(ctx context.Context, s *soak) (string, error)
}

var actions = []action{
	{"add or change peers", 30, addPeers},
	{"remove peers", 14, removePeers},
	{"add rogues", 4, addRogues},
	{"remove rogues", 3, removeRogues},
	{"drift", 40, drift},
	{"stop daemon", 4, endDaemon},
	{"start daemon", 8, startDaemon},
	{"stop etcd", 1, endEtcd},
	{"start etcd", 8, func(ctx context.Context, s *soak) (string, error) {
		if !s.etcdDown {
			return "", nil
		}
		return "again", s.restoreEtcd(ctx)
	}},
	{"compact etcd", 1, func(ctx context.Context, s *soak) (string, error) {
		if s.etcdDown {
			return "", nil
		}
		err := s.Etcd.Compact(ctx)
		if errors.Is(err, rpctypes.ErrCompacted) { // nothing was written since the last compaction
			err = nil
		}
		return "all of it", err
	}},
	{"switch firewall", 1, func(ctx context.Context, s *soak) (string, error) {
		if s.etcdDown {
			return "", nil
		}
		s.nft = !s.nft
		return fmt.Sprintf("nftables %t", s.nft), s.configure(ctx)
	}},
}

// write puts and deletes keys in one transaction.
func (s *soak) write(ctx context.Context, ops []clientv3.Op) error {
	c, err := s.Etcd.Client()
	if err == nil {
		_, err = c.Txn(ctx).Then(ops...).Commit()
	}
	return err
}

func addPeers(ctx context.Context, s *soak) (string, error) {
	if s.etcdDown {
		return "", nil
	}
	var ops []clientv3.Op
	var keys []string
	for _, i := range randomPeers(s) {
		p := s.newPeer(i, s.rnd.IntN(1000))
		raw, err := json.Marshal(p)
		if err != nil {
			return p.key, err
		}
		s.peers[i] = p
		keys, ops = append(keys, p.key), append(ops, clientv3.OpPut(subnets+p.key, string(raw)))
	}
	return strings.Join(keys, " "), s.write(ctx, ops)
}

// randomPeers returns a few numbers of peers in order. Without the order, a
// seed would not repeat a run.
func randomPeers(s *soak) (few []int) {
	for range 1 + s.rnd.IntN(12) {
		few = append(few, 1+s.rnd.IntN(119))
	}
	slices.Sort(few)
	return slices.Compact(few)
}

func removePeers(ctx context.Context, s *soak) (string, error) {
	var ops []clientv3.Op
	var keys []string
	if s.etcdDown {
		return "", nil
	}
	for _, i := range randomPeers(s) {
		if p, ok := s.peers[i]; ok {
			keys, ops = append(keys, p.key), append(ops, clientv3.OpDelete(subnets+p.key))
			delete(s.peers, i)
		}
	}
	if len(ops) == 0 {
		return "", nil
	}
	return strings.Join(keys, " "), s.write(ctx, ops)
}

func addRogues(ctx context.Context, s *soak) (string, error) {
	if s.etcdDown {
		return "", nil
	}
	good := fmt.Sprintf(`{"PublicIP":"192.168.100.66","PublicIPv6":null,"BackendType":%q,"BackendData":{"VNI":1,"VtepMAC":"02:bb:00:00:00:01"}}`, s.backend)
	four, _, _ := strings.Cut(s.members[1].key, "&")
	base := strings.TrimSuffix(four, ".0-24")
	var ops []clientv3.Op
	var keys []string
	for range 1 + s.rnd.IntN(5) {
		key := []string{"foo", "0.0.0.0-1", "10.5.0.0-16", "192.168.100.0-24", base + ".0-25", base + ".64-26",
			"10.6.7.0-24", "10.5.127.9-32"}[s.rnd.IntN(8)]
		value := []string{good, "garbage", strings.Repeat("x", 200_000)}[s.rnd.IntN(3)]
		if slices.Contains(keys, key) {
			continue // a key can only occur once in a transaction
		}
		s.rogues[key] = true
		keys, ops = append(keys, key), append(ops, clientv3.OpPut(subnets+key, value))
	}
	return strings.Join(keys, " "), s.write(ctx, ops)
}

func removeRogues(ctx context.Context, s *soak) (string, error) {
	if s.etcdDown || len(s.rogues) == 0 {
		return "", nil
	}
	var ops []clientv3.Op
	for key := range s.rogues {
		ops = append(ops, clientv3.OpDelete(subnets+key))
	}
	clear(s.rogues)
	return "all", s.write(ctx, ops)
}

// endDaemon stops or kills a daemon, but not that of the first node, whose
// memory is measured.
func endDaemon(ctx context.Context, s *soak) (string, error) {
	n := s.Nodes[1+s.rnd.IntN(len(s.Nodes)-1)]
	kill := s.rnd.IntN(2) == 0
	if !n.Running() {
		return "", nil
	}
	s.noteEnd(n)
	if kill {
		return n.Name + ", kill -9", n.Kill()
	}
	status, err := n.Stop(ctx)
	// A daemon that has not logged anything may not handle signals yet. SIGTERM
	// then kills it.
	silent := len(n.Log()) == s.logged[n]
	if err == nil && status != 0 && !(silent && status == 128+int(syscall.SIGTERM)) {
		err = fmt.Errorf("status %d", status)
	}
	return n.Name + ", SIGTERM", err
}

func startDaemon(_ context.Context, s *soak) (string, error) {
	for _, n := range s.Nodes {
		if !n.Running() {
			return n.Name, s.start(n)
		}
	}
	return "", nil
}

func (s *soak) start(n *lab.Node) error {
	s.logged[n] = len(n.Log())
	return n.Start()
}

func endEtcd(ctx context.Context, s *soak) (string, error) {
	how := s.rnd.IntN(3)
	if s.etcdDown {
		return "", nil
	}
	s.etcdDown = true
	s.noteEnd(s.Nodes...)
	switch how {
	case 0:
		return "stopped", s.Etcd.Stop(ctx)
	case 1:
		return "killed", s.Etcd.Kill()
	}
	return "paused", s.Etcd.Pause()
}

// restoreEtcd ends an outage of etcd.
func (s *soak) restoreEtcd(ctx context.Context) error {
	if !s.etcdDown {
		return nil
	}
	s.etcdDown = false
	// Resume succeeds if etcd is paused, and fails if it has ended.
	if s.Etcd.Resume() != nil {
		if err := s.Etcd.Start(ctx); err != nil {
			return err
		}
	}
	c, err := s.Etcd.Client()
	if err != nil {
		return err
	}
	// Wait for the connection: the client retries reads, but not writes.
	_, err = c.Get(ctx, "any")
	return err
}

// drifts are shell commands that change the kernel or files of a node behind
// the daemon's back: for all configurations, for vxlan, for IPv6 (dual), and
// for vxlan with IPv6 (both). S is the base address of a peer's subnet, MAC the
// MAC of its VTEP; S6 and MAC6 are the same for IPv6. OWN is a MAC that no
// other node gets.
var drifts = struct{ all, vxlan, dual, both []string }{
	all: []string{
		"ip route del $S/24", "ip route replace $S/24 via 192.168.100.77 dev eth0", "ip route replace blackhole $S/24",
		"ip route replace $S/24 via 192.168.100.77 dev eth0 proto 70",
		"ip route prepend $S/24 via 192.168.100.77 dev eth0",
		"ip route add 10.5.0.0/24 via 192.168.100.77 proto 70", "ip nexthop flush proto 70",
		"ip nexthop add id 1174414712 via 192.168.100.77 dev eth0 proto 70",
		"sysctl -qw net.ipv4.ip_forward=0", "rm /run/flannel/subnet.env", "echo FLANNEL_MTU=9 >/run/flannel/subnet.env",
		"iptables -t nat -F POSTROUTING", "iptables -F FORWARD", "iptables -t nat -F FLANNEL-POSTRTG",
		"iptables -t nat -I POSTROUTING -s 10.99.0.0/16 -j RETURN",
		"nft delete table ip flannel-ipv4", "nft flush chain ip flannel-ipv4 postrtg", "ip route flush proto 70",
	},
	vxlan: []string{
		"ip neigh del $S dev flannel.1", "ip neigh replace $S lladdr 02:00:00:00:99:99 dev flannel.1 nud permanent",
		"ip neigh flush dev flannel.1 nud permanent",
		"ip neigh add 10.5.0.0 lladdr 02:00:00:00:99:99 dev flannel.1 nud permanent",
		"bridge fdb del $MAC dev flannel.1",
		"bridge fdb replace $MAC dev flannel.1 dst 192.168.100.77 self permanent",
		"bridge fdb add 02:00:00:00:99:99 dev flannel.1 dst 192.168.100.77 self permanent",
		"bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.168.100.77 self permanent", "ip link del flannel.1",
		"ip link set flannel.1 down",
		"ip link set flannel.1 down; ip link set flannel.1 up", "ip addr flush dev flannel.1",
		"ip addr add 10.5.0.1/32 dev flannel.1",
		"ip link set flannel.1 mtu 1400", "ip link set flannel.1 address $OWN",
		"ip link add flannel.9 type vxlan id 9 dstport 9999 dev eth0; ip addr add 10.5.1.0/32 dev flannel.9",
	},
	dual: []string{"ip -6 route del $S6/64", "ip -6 route replace $S6/64 via fd00:100::77 dev eth0",
		"sysctl -qw net.ipv6.conf.all.forwarding=0", "ip6tables -F FORWARD"},
	both: []string{
		"ip neigh del $S6 dev flannel-v6.1", "bridge fdb del $MAC6 dev flannel-v6.1", "ip link del flannel-v6.1",
		"ip link set flannel-v6.1 down; ip link set flannel-v6.1 up",
		"ip link del flannel.1; ip link del flannel-v6.1", "ip addr flush dev flannel-v6.1 scope global",
	},
}

func drift(ctx context.Context, s *soak) (string, error) {
	kinds := slices.Clone(drifts.all)
	if s.backend == "vxlan" {
		kinds = append(kinds, drifts.vxlan...)
	}
	if s.family.Has6() {
		kinds = append(kinds, drifts.dual...)
		if s.backend == "vxlan" {
			kinds = append(kinds, drifts.both...)
		}
	}
	n, command := s.Nodes[s.rnd.IntN(len(s.Nodes))], kinds[s.rnd.IntN(len(kinds))]
	numbers := slices.Sorted(maps.Keys(s.peers))
	if len(numbers) == 0 {
		return "", nil
	}
	p := s.peers[numbers[s.rnd.IntN(len(numbers))]]
	four, six, _ := strings.Cut(p.key, "&")
	four, six = strings.TrimSuffix(four, "-24"), strings.TrimSuffix(six, "-64")
	vars := fmt.Sprintf("S=%s; S6=%s; OWN=02:00:00:00:99:%02x", four, six, slices.Index(s.Nodes, n))
	if p.BackendData != nil {
		vars += "; MAC=" + p.BackendData.VtepMAC
	}
	if p.BackendV6Data != nil {
		vars += "; MAC6=" + p.BackendV6Data.VtepMAC
	}
	s.noteDrift(n)
	// Errors are ignored: what the command changes may not exist at the moment.
	_, err := n.Run(ctx, "sh", "-c", vars+"; ("+command+") 2>/dev/null || true")
	return fmt.Sprintf("%s (%s): %s; %s", n.Name, running(n), vars, command), errors.Join(err, ctx.Err())
}

func running(n *lab.Node) string {
	if n.Running() && n.Signal(syscall.Signal(0)) == nil {
		return "running"
	}
	return "not running"
}
