package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/status"
)

// These tests use the WireGuard of the kernel, or wireguard-go if it has none.

const wgSecret = "kQ1dWgGuKn2mRZbTr0gBLQ0zbZk0iT4k3nbh5kFq2Hs=" // a preshared key

// wgIdentity returns what must outlive a daemon: the devices with their keys and
// ports, and the processes of wireguard-go.
func wgIdentity(ctx context.Context, n *lab.Node) (string, error) {
	return try(ctx, n.Namespaces, `for d in $(ls /sys/class/net | grep ^flannel); do
			echo $d $(cat /sys/class/net/$d/ifindex) $(wg show $d public-key) $(wg show $d listen-port)
		done; cat /run/flannel/wgkey | wg pubkey; pgrep wireguard-go || true`)
}

// wgDump returns the peers of the devices with endpoints and allowed IPs.
func wgDump(ctx context.Context, n *lab.Node) (string, error) {
	return try(ctx, n.Namespaces, `wg show all dump | awk 'NF==9 {print $1, $2, $4, $5}' | sort; ip route show proto 70; ip -6 route show proto 70`)
}

// checkSame reports what a step has changed.
func checkSame(t *testing.T, what, before string, read func(context.Context) (string, error)) {
	t.Helper()
	if after, err := read(t.Context()); err != nil || after != before {
		t.Errorf("%s: was\n%s\nis\n%s (%v)", what, before, after, err)
	}
}

// The network works without the daemon, and a start, a restart and a kill -9 lose
// nothing.
func TestWireGuardOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"separate", "auto"} {
		t.Run(mode, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"wireguard","Mode":"`+mode+`","PersistentKeepaliveInterval":5}`)
			a, b := pair(t, l)
			must(t, reach(t.Context(), a, b))
			floods := []*flow{flood(t, a, b), flood(t, b, a)}
			n := l.Nodes[0]
			before, err := wgIdentity(t.Context(), n)
			must(t, err)
			leasesBefore := leases(t, l)
			for range 2 {
				must(t, n.Kill())
				must(t, n.Start())
				must(t, n.Ready(t.Context()))
				_, err := n.Stop(t.Context())
				must(t, err)
				must(t, n.Start())
				must(t, n.Ready(t.Context()))
			}
			checkSame(t, "device and keys", before, func(ctx context.Context) (string, error) { return wgIdentity(ctx, n) })
			for _, f := range floods {
				f.checkNoLoss(t, "restarts and kills")
			}
			if after := leases(t, l); len(after) != len(leasesBefore) {
				t.Errorf("the leases were %v and are %v", leasesBefore, after)
			}
			// A process that is killed, or a deleted device, comes back with the same key.
			shell(t, n.Namespaces, "ip link del flannel-wg")
			within(t, "pods reach each other again", func() error { return reach(t.Context(), a, b) })
			if after, err := wgIdentity(t.Context(), n); err != nil || strings.Fields(after)[2] != strings.Fields(before)[2] {
				t.Errorf("the key was\n%s\nand is\n%s (%v)", before, after, err)
			}
		})
	}
}

// The state of a node where flannel ran: its devices, key and routes. flanneld takes
// over, one node after the other, and no packet is lost.
func TestWireGuardTakesOverFromFlannel(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"wireguard"}`)
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	floods := []*flow{flood(t, a, b), flood(t, b, a)}
	var before []string
	for _, n := range l.Nodes {
		must(t, n.Kill())
		// The routes as flannel has them, added before ours are deleted.
		shell(t, n.Namespaces, `ip route add 10.5.0.0/16 dev flannel-wg scope link; ip -6 route add fd05::/48 dev flannel-wg-v6
			ip route flush proto 70; ip -6 route flush proto 70`)
		identity, err := wgIdentity(t.Context(), n)
		must(t, err)
		before = append(before, identity)
	}
	must(t, l.StartAll(t.Context()))
	for i, n := range l.Nodes {
		checkSame(t, n.Name, before[i], func(ctx context.Context) (string, error) { return wgIdentity(ctx, n) })
		within(t, "flannel's routes are deleted", func() error {
			out, err := try(t.Context(), n.Namespaces, "ip route show 10.5.0.0/16 proto boot; ip -6 route show fd05::/48 proto boot; ip route show proto 70 | wc -l; ip -6 route show proto 70 | wc -l")
			if err == nil && words(out) != words("3\n3") {
				err = fmt.Errorf("routes: %s", out)
			}
			return err
		})
	}
	for _, f := range floods {
		f.checkNoLoss(t, "the takeover")
	}
}

// Node 2 is behind NAT: the others only reach it where its packets come from, which
// WireGuard learns. flanneld leaves that alone, also after a restart.
func TestWireGuardPeerBehindNAT(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Subnets: 2}, `{"Type":"wireguard","PersistentKeepaliveInterval":1}`)
	// etcd is on network 100; only UDP to the lease's address is blocked.
	shell(t, l.Infra.Namespaces, `iptables -A FORWARD -p udp -s 192.168.100.0/24 -d 192.168.101.0/24 -m conntrack --ctstate NEW -j DROP
		iptables -t nat -A POSTROUTING -p udp -s 192.168.101.0/24 -d 192.168.100.0/24 -j MASQUERADE --to-ports 40000-40999`)
	must(t, l.StartAll(t.Context()))
	a, b := pair(t, l)
	within(t, "pods reach each other", func() error { return reach(t.Context(), a, b) })
	n := l.Nodes[0]
	learned := func() error {
		r, err := reportOf(t, n)
		if err == nil && (len(r.Peers) != 1 || len(r.Peers[0].Tunnels) != 1) {
			err = fmt.Errorf("peers: %+v", r.Peers)
		}
		if err == nil && (r.Peers[0].Tunnels[0].Endpoint.Addr().String() != "192.168.100.1" || r.Peers[0].Tunnels[0].Handshake.IsZero() || r.Peers[0].Tunnels[0].Received == 0) {
			err = fmt.Errorf("the endpoint is not that of the NAT: %+v", r.Peers[0].Tunnels)
		}
		return err
	}
	within(t, "the endpoint is learned", learned)
	f := flood(t, a, b)
	listed := func() float64 { return numbers(t, n)[`flanneld_wireguard_bytes_total{direction="sent"}`] }
	for range 3 { // lists of the peers, each of which could set the lease's endpoint
		sent := listed()
		within(t, "the peers are listed", func() error {
			if listed() == sent {
				return fmt.Errorf("still %v bytes", sent)
			}
			return nil
		})
	}
	must(t, n.Kill())
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	within(t, "after a restart, too", learned)
	f.checkNoLoss(t, "lists and a restart beside a learned endpoint")
	within(t, "status -o wide shows the endpoint", func() error { return says(t, n, "192.168.100.1:40", l.Flanneld(), "status", "-o", "wide") })
}

// reportOf returns a node's answer to flanneld status --json. It waits for the socket,
// which a daemon makes beside its first pass.
func reportOf(t *testing.T, n *lab.Node) (r status.Report, err error) {
	_, err = machine.Until(t.Context(), timeout, func(ctx context.Context) error {
		_, body, err := n.GetUnix(ctx, "/run/flannel/flanneld.sock", "http://flanneld/status")
		if err == nil {
			err = json.Unmarshal([]byte(body), &r)
		}
		return err
	})
	return r, err
}

// Backends change while the nodes run, and nothing of the former one is left.
func TestWireGuardAndOtherBackends(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`, atOnce)
	a, b := pair(t, l)
	for _, c := range []struct{ backend, devices string }{
		{`{"Type":"wireguard"}`, "flannel-wg flannel-wg-v6"},
		{`{"Type":"wireguard","Mode":"ipv6","PSK":"` + wgSecret + `"}`, "flannel-wg"},
		{`{"Type":"wireguard","Mode":"ipv4","ListenPort":4500}`, "flannel-wg"},
		{`{"Type":"host-gw"}`, ""},
		{`{"Type":"wireguard"}`, "flannel-wg flannel-wg-v6"},
		{`{"Type":"vxlan"}`, "flannel-v6.1 flannel.1"},
	} {
		must(t, l.SetConfig(t.Context(), l.Config(c.backend)))
		for _, n := range l.Nodes {
			eventually(t, c.backend+": devices", c.devices, func(ctx context.Context) (string, error) {
				out, err := try(ctx, n.Namespaces, "ls /sys/class/net | grep ^flannel | xargs echo")
				return strings.TrimSpace(out), err
			})
		}
		must(t, reach(t.Context(), a, b))
		must(t, reach(t.Context(), b, a))
		for _, n := range l.Nodes {
			if strings.Contains(c.devices, "wg") {
				continue
			}
			eventually(t, c.backend+": no process, socket or route is left", "", func(ctx context.Context) (string, error) {
				return try(ctx, n.Namespaces, `ps -C wireguard-go -o stat= | grep -v ^Z || true; ls /run/wireguard 2>/dev/null || true; ip route | grep flannel-wg || true`)
			})
		}
		t.Logf("%s works", c.backend)
	}
}

// Leases that claim what belongs to another node do not get it.
func TestWireGuardRogues(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 3}, `{"Type":"wireguard"}`+apart)
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	f := flood(t, a, b)
	victimKey, victim := leaseOf(t, l, l.Nodes[1])
	before := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		hasPeers(t, n, 2)
		text, err := wgDump(t.Context(), n)
		must(t, err)
		before[n] = text
	}
	fresh := func(i int) string {
		return base64.StdEncoding.EncodeToString(append([]byte{9, byte(i)}, make([]byte, 30)...))
	}
	lease := func(public, data string) string {
		return `{"PublicIP":"` + public + `","PublicIPv6":null,"BackendType":"wireguard"` + data + `}`
	}
	data := func(key string) string { return `,"BackendData":{"PublicKey":"` + key + `","Port":51820}` }
	base := strings.TrimSuffix(victimKey, ".0-24")
	rogues := map[string]string{
		base + ".0-25":     lease("192.168.100.66", data(fresh(1))), // parts of the subnet of the victim, and more
		base + ".128-25":   lease("192.168.100.66", data(fresh(2))),
		"10.5.128.0-17":    lease("192.168.100.66", data(fresh(3))),
		"0.0.0.0-1":        lease("192.168.100.66", data(fresh(4))),
		"192.168.100.0-24": lease("192.168.100.66", data(fresh(5))),
		"10.5.200.0-24":    strings.Replace(victim, "192.168.100.12", "192.168.100.66", 1), // the key of the victim
		"10.5.201.0-24":    lease("192.168.100.66", ""),
		"10.5.202.0-24":    lease("192.168.100.66", `,"BackendData":"x"`),
		"10.5.203.0-24":    lease("192.168.100.66", `,"BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}`),
		"10.5.204.0-24":    lease("192.168.100.66", data("AAAA")),
		"10.5.205.0-24":    lease("192.168.100.66", data(strings.Repeat("A", 43)+"=")),
		"10.5.206.0-24":    lease("192.168.100.66", `,"BackendData":{"PublicKey":"`+fresh(6)+`","Port":70000}`),
		"10.5.207.0-24":    lease("127.0.0.1", data(fresh(7))),
		"10.5.208.0-24":    lease("224.0.0.1", data(fresh(8))),
		"10.5.209.0-24":    lease("10.5.209.9", data(fresh(9))),
	}
	for key, text := range rogues {
		_, err := etcdClient(t, l).Put(t.Context(), subnetKeys+key, text)
		must(t, err)
	}
	for _, n := range l.Nodes {
		within(t, n.Name+" rejects them", func() error { return has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", len(rogues))) })
		eventually(t, n.Name+" is as before", before[n], func(ctx context.Context) (string, error) { return wgDump(ctx, n) })
		becomesReady(t, n)
	}
	must(t, l.Nodes[2].Kill())
	must(t, l.Nodes[2].Start())
	must(t, l.Nodes[2].Ready(t.Context()))
	eventually(t, "after a restart", before[l.Nodes[2]], func(ctx context.Context) (string, error) { return wgDump(ctx, l.Nodes[2]) })
	f.checkNoLoss(t, "rogues")
}

// Neither the private key nor the preshared key is anywhere but in the file, in the
// configuration and in the device.
func TestWireGuardSecrets(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"wireguard","PSK":"`+wgSecret+`"}`, "-v=10")
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	n := l.Nodes[0]
	// Drift of both keys is repaired, which is logged.
	shell(t, n.Namespaces, "wg genkey > /run/other; wg set flannel-wg private-key /run/other; wg set flannel-wg peer $(wg show flannel-wg peers) preshared-key /run/other")
	within(t, "the keys are restored", func() error { return reach(t.Context(), a, b) })
	private, other := strings.TrimSpace(shell(t, n.Namespaces, "cat /run/flannel/wgkey")), strings.TrimSpace(shell(t, n.Namespaces, "cat /run/other"))
	secrets := map[string][]byte{}
	for name, text := range map[string]string{"private key": private, "preshared key": wgSecret, "foreign key": other} {
		raw, err := base64.StdEncoding.DecodeString(text)
		must(t, err)
		secrets[name] = raw
	}
	hides(t, l, n, secrets, "flanneld_wireguard_peers", "PublicKey")
}
