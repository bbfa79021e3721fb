package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/cmd/flannel-lab/lab"
)

// The tests of this file show the statements of Documentation/security.md that no
// other test shows: what works against flanneld, and what prevents it.

// Somebody between the nodes reads and changes what pods send, except with wireguard.
func TestReadAndChangeOnTheWay(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("a secret of pods", 5)
	for backend, payload := range map[string]int{ // the offset of the pods' data behind the first IP header
		"vxlan":     8 + 8 + 14 + 20 + 8,
		"udp":       8 + 20 + 8,
		"host-gw":   8,
		"wireguard": 8 + 16 + 20 + 8, // encrypted
	} {
		length := payload + len(secret)
		if backend == "wireguard" {
			length += 4 + 16 // to a multiple of 16 bytes; the tag
		}
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			// With probes, other packets have the length of the encrypted datagram: the kernel reports to a peer that the hop limit
			// of its probe for a pod has ended. That packet has 104 bytes and the datagram 108; WireGuard pads both to 112.
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`"}`, "--probe=false")
			a, b := pair(t, l)
			must(t, reach(t.Context(), a, b))
			in, s := newInbox(t, b), sniff(t, l, secret)
			unprotected := udpPacket(netip.AddrPortFrom(a.IP4, 4242), in.at, []byte(secret))
			unprotected[20+6], unprotected[20+7] = 0, 0 // no checksum, which the change would have to correct
			send := func() error { return sendRaw(a.Namespaces, unprotected) }
			if !in.arrives(t, a, send) {
				t.Fatal("an honest datagram does not arrive")
			}
			if read, want := s.count(t) > 0, backend != "wireguard"; read != want {
				t.Errorf("read on the way: %t, want %t", read, want)
			}
			// "a se" becomes "A SE".
			shell(t, l.Infra.Namespaces, "nft add table bridge change; nft add chain bridge change forward '{ type filter hook forward priority 0; }';"+
				"nft add rule bridge change forward ip saddr %s ip daddr %s udp length %d counter @th,%d,32 set 0x41205345", outerSource(l, backend, a), outerDestination(l, backend, b), length, payload*8)
			must(t, send())
			if backend == "wireguard" {
				within(t, "it is changed", func() error { // the kernel encrypts it in its own time
					_, err := try(t.Context(), l.Infra.Namespaces, "nft list table bridge change | grep 'counter packets 1 '")
					return err
				})
				shell(t, l.Infra.Namespaces, "nft delete table bridge change")
				if in.arrives(t, a, func() error { return nil }) {
					t.Error("a changed datagram arrives")
				}
				return
			}
			if got, _ := in.next(t); got != "A SE"+secret[4:] {
				t.Errorf("received %q", got)
			}
		})
	}
}

func outerSource(l *lab.Lab, backend string, a *lab.Pod) netip.Addr {
	if backend == "host-gw" {
		return a.IP4
	}
	return l.Nodes[0].IP4
}

func outerDestination(l *lab.Lab, backend string, b *lab.Pod) netip.Addr {
	if backend == "host-gw" {
		return b.IP4
	}
	return l.Nodes[1].IP4
}

// A host on the link that uses a node's address passes as that node, although the guard
// enforces, except with wireguard.
func TestForgedNodeAddress(t *testing.T) {
	t.Parallel()
	for backend, want := range map[string]bool{"vxlan": true, "udp": true, "wireguard": false} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := &guardTest{l: start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`","Guard":"enforce","GuardTrial":0}`+apart)}
			s.a, s.b = pair(t, s.l)
			must(t, reach(t.Context(), s.a, s.b))
			within(t, "the guard enforces", func() error { return s.enforces(t, s.l.Nodes[1]) })
			in := newInbox(t, s.b)
			s.port = in.at.Port()
			port := map[string]uint16{"vxlan": 8472, "udp": 8285, "wireguard": 51820}[backend]
			outer := udpPacket(netip.AddrPortFrom(s.l.Nodes[0].IP4, port), netip.AddrPortFrom(s.l.Nodes[1].IP4, port), s.encapsulate(t, backend, s.a.IP4))
			if got := in.arrives(t, s.a, func() error { return sendRaw(s.l.Infra.Namespaces, outer) }); got != want {
				t.Errorf("it arrives: %t, want %t", got, want)
			}
		})
	}
}

// A pod with the right to open raw sockets uses the address of another pod behind the same
// bridge, with or without encryption, although the guard enforces. Without that right it
// cannot.
func TestStolenPodAddress(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "wireguard"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := &guardTest{l: start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`","Guard":"enforce","GuardTrial":0}`+apart)}
			s.a, s.b = pair(t, s.l)
			must(t, reach(t.Context(), s.a, s.b))
			thief := pod(t, s.l.Nodes[0], "thief")
			must(t, reach(t.Context(), thief, s.b))
			within(t, "the guard enforces", func() error { return s.enforces(t, s.l.Nodes[0]) })
			in := newInbox(t, s.b)
			packet := udpPacket(netip.AddrPortFrom(s.a.IP4, 4242), in.at, []byte("stolen"))
			must(t, sendRaw(thief.Namespaces, packet))
			if got, from := in.next(t); got != "stolen" || from != s.a.IP4 {
				t.Errorf("received %q from %s", got, from)
			}
			err := thief.Do(func() error { // on a thread that ends with Do
				header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				var none [2]unix.CapUserData
				if err := unix.Capset(&header, &none[0]); err != nil {
					return err
				}
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
				if err == nil {
					unix.Close(fd)
				}
				return err
			})
			if !errors.Is(err, unix.EPERM) {
				t.Errorf("a raw socket without the capability: %v", err)
			}
		})
	}
}

// Rules that allow one pod's address, as those of a NetworkPolicy, are passed by whoever
// forges it. A firewall that lets only nodes send to the tunnel's port stops hosts that
// are no nodes.
func TestRulesJudgeTheForgedSource(t *testing.T) {
	t.Parallel()
	s := &guardTest{l: start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)}
	s.a, s.b = pair(t, s.l)
	must(t, reach(t.Context(), s.a, s.b))
	node := s.l.Nodes[1]
	shell(t, node.Namespaces, "nft add table ip allow; nft add chain ip allow forward '{ type filter hook forward priority 0; }';"+
		"nft add rule ip allow forward ip daddr %s ip saddr != %s drop", s.b.IP4, s.a.IP4)
	in := newInbox(t, s.b)
	s.port = in.at.Port()
	c, err := dialFrom(s.l.Infra.Namespaces, netip.Addr{}, netip.AddrPortFrom(node.IP4, 8472))
	must(t, err)
	defer c.Close()
	forge := func(source netip.Addr) func() error {
		frame := s.encapsulate(t, "vxlan", source)
		return func() error { _, err := c.Write(frame); return err }
	}
	other := s.a.IP4.Next()
	if in.arrives(t, s.a, forge(other)) {
		t.Errorf("the rule lets %s pass", other)
	}
	if !in.arrives(t, s.a, forge(s.a.IP4)) {
		t.Error("the rule knows the forged source")
	}
	shell(t, node.Namespaces, "nft add table ip nodes; nft add chain ip nodes input '{ type filter hook input priority 0; }';"+
		"nft add rule ip nodes input udp dport 8472 ip saddr != %s drop", s.l.Nodes[0].IP4)
	if in.arrives(t, s.a, forge(s.a.IP4)) {
		t.Error("a host that is no node sends through the tunnel")
	}
}

// Root on a node sends with the address of another node's pod: the kernel drops it with
// wireguard, and not with vxlan.
func TestNodeForgesAPod(t *testing.T) {
	t.Parallel()
	for backend, want := range map[string]bool{"vxlan": true, "wireguard": false} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 3}, `{"Type":"`+backend+`","Guard":"off"}`+apart)
			a, b := pair(t, l)
			third := pod(t, l.Nodes[2], "c")
			must(t, reach(t.Context(), a, b))
			must(t, reach(t.Context(), third, b))
			in := newInbox(t, b)
			packet := udpPacket(netip.AddrPortFrom(third.IP4, 4242), in.at, []byte("forged"))
			// The node's own rules would masquerade it.
			shell(t, l.Nodes[0].Namespaces, "nft add table ip forge; nft add chain ip forge output '{ type filter hook output priority raw; }';"+
				"nft add rule ip forge output ip saddr %s notrack", third.IP4)
			if got := in.arrives(t, a, func() error { return sendRaw(l.Nodes[0].Namespaces, packet) }); got != want {
				t.Errorf("it arrives: %t, want %t", got, want)
			}
		})
	}
}

// Somebody who writes a lease, or a Node's annotations, gets the packets for its pods, as long
// as the node does not restore it.
func TestLeaseTakesPackets(t *testing.T) {
	t.Parallel()
	const attacker = "192.168.100.1"
	for name, rewrite := range map[string]func(t *testing.T, l *lab.Lab, victim *lab.Node){
		"etcd": func(t *testing.T, l *lab.Lab, victim *lab.Node) {
			key, text := leaseOf(t, l, victim)
			var v value
			must(t, json.Unmarshal([]byte(text), &v))
			v.PublicIP = attacker
			putLease(t, l, key, &v)
		},
		"kubernetes": func(t *testing.T, l *lab.Lab, victim *lab.Node) {
			_, err := l.Kube.Client.CoreV1().Nodes().Patch(t.Context(), victim.Name, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip":"`+attacker+`"}}}`), metav1.PatchOptions{})
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2, Kube: name == "kubernetes"}, `{"Type":"vxlan"}`)
			a, b := pair(t, l)
			must(t, reach(t.Context(), a, b))
			must(t, l.Nodes[1].Kill())
			rewrite(t, l, l.Nodes[1])
			waitSynced(t, l, l.Nodes[0])
			attackerReceives(t, l, a, b)
		})
	}
}

// attackerReceives checks that what a pod sends to another arrives at a host that is no node.
func attackerReceives(t *testing.T, l *lab.Lab, from, to *lab.Pod) {
	t.Helper()
	const secret = "a secret of pods"
	var c *net.UDPConn
	must(t, l.Infra.Do(func() (err error) { c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 8472}); return err }))
	t.Cleanup(func() { c.Close() })
	var received atomic.Bool
	go func() {
		for buf := make([]byte, 2048); ; {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte(secret)) {
				received.Store(true)
			}
		}
	}()
	packet := udpPacket(netip.AddrPortFrom(from.IP4, 4242), netip.AddrPortFrom(to.IP4, 9), []byte(secret))
	within(t, "the attacker receives the datagram", func() error {
		must(t, sendRaw(from.Namespaces, packet))
		if !received.Load() {
			return errors.New("none has arrived")
		}
		return nil
	})
}

// Without TLS, etcd's password can be read on the way.
func TestPasswordOnTheWay(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			certificates(t, dir)
			o, args := lab.Options{Nodes: 2}, []string{"-etcd-endpoints=" + scheme + "://192.168.100.1:2379", "-etcd-username=flannel"}
			if scheme == "https" {
				o.EtcdArgs, args = secured(dir, false), append(args, "-etcd-cafile="+dir+"/ca.crt")
			} else {
				o.EtcdArgs = []string{"--listen-client-urls=http://192.168.100.1:2379,http://127.0.0.1:2379", "--bcrypt-cost=4",
					"--advertise-client-urls=http://192.168.100.1:2379"}
			}
			l := bare(t, o)
			admin := plainClient(t, l)
			_, err := admin.Put(t.Context(), "/coreos.com/network/config", l.Config(`{"Type":"vxlan"}`))
			must(t, err)
			enableAuth(t, admin)
			s := sniff(t, l, rightPassword)
			for _, n := range l.Nodes {
				n.Env = []string{"FLANNELD_ETCD_PASSWORD=" + rightPassword}
			}
			must(t, l.StartAll(t.Context(), args...))
			if read, want := s.count(t) > 0, scheme == "http"; read != want {
				t.Errorf("%s: the password can be read: %t, want %t", scheme, read, want)
			}
		})
	}
}
