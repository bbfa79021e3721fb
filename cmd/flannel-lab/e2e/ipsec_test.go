//go:build kernels

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// The tests of this file need ESP in the kernel, and strongSwan.

var (
	ipsecSecret = strings.Repeat("0123456789abcdef", 6)
	ipsec       = `{"Type":"ipsec","PSK":"` + ipsecSecret + `"}`
)

// swanctl calls strongSwan's command for the charon that flanneld has started.
const swanctl = "STRONGSWAN_CONF=/run/flannel/strongswan.conf swanctl "

// connections prints the names of our connections. swanctl splits names at dots, so that of all its forms only the raw one
// has more of them than the name.
const connections = swanctl + `--list-conns --raw 2>/dev/null | grep -oE '[0-9.]+-[0-9./]+-[0-9./]+-[0-9.]+ [{]' | tr -d ' {'`

// signalCharon is a command that sends a signal to the node's charon, and waits until that has ended.
const signalCharon = `for p in $(pgrep charon); do
	[ "$(readlink /proc/$p/ns/net)" != "$(readlink /proc/self/ns/net)" ] || { kill -%s $p; while kill -0 $p 2>/dev/null; do sleep 0.1; done; }
done`

// policies returns the policies of a node's kernel between pods, and its connections.
func policies(ctx context.Context, n *lab.Node) (string, error) {
	out, err := n.Run(ctx, "ip", "xfrm", "policy")
	if err != nil {
		return "", err
	}
	var all []string
	ours := false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		first := strings.HasPrefix(line, "src ") // of a policy; what follows is indented
		switch {
		case first:
			if ours = strings.HasPrefix(line, "src 10.5."); ours {
				all = append(all, line)
			}
		case ours:
			all[len(all)-1] += " " + line
		}
	}
	conns, _ := n.Run(ctx, "sh", "-c", swanctl+"--list-conns --raw 2>/dev/null") // there may be no charon
	for _, found := range connection.FindAllStringSubmatch(conns, -1) {
		all = append(all, found[1])
	}
	return words(strings.Join(all, "\n")), nil
}

// connection is the name of a connection of ours where swanctl begins to list it.
var connection = regexp.MustCompile(`([0-9.]+-[0-9./]+-[0-9./]+-[0-9.]+) [{]`)

// localPriority is that of the policy between pods of one node; the next one is that of the policy that drops packets.
const localPriority = 70 << 24

// wantPolicies returns what policies returns for a network of two nodes.
func wantPolicies(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	peer := l.Nodes[0]
	if peer == n {
		peer = l.Nodes[1]
	}
	subnet := func(n *lab.Node) string { return strings.Replace(ours(t, l, n)[0], "-", "/", 1) }
	line := func(dir string, from, to *lab.Node) string {
		return fmt.Sprintf("src %s dst %s dir %s priority 0 ptype main tmpl src %s dst %s proto esp reqid 11 mode tunnel",
			subnet(from), subnet(to), dir, from.IP4, to.IP4)
	}
	name := fmt.Sprintf("%s-%s-%s-%s", n.IP4, subnet(n), subnet(peer), peer.IP4)
	own := subnet(n)
	return words(strings.Join([]string{line("out", n, peer), line("in", peer, n), line("fwd", peer, n),
		fmt.Sprintf("src %[1]s dst %[1]s dir out priority %[2]d ptype main", own, localPriority),
		fmt.Sprintf("src %s dst 10.5.0.0/16 dir out action block priority %d ptype main", own, localPriority+1), name}, "\n"))
}

// hasPolicies waits until a node has the policies and connections of a network of two nodes.
func hasPolicies(t *testing.T, l *lab.Lab, n *lab.Node, why string) {
	t.Helper()
	eventually(t, why, wantPolicies(t, l, n), func(ctx context.Context) (string, error) { return policies(ctx, n) })
}

// withoutIPsec waits until nothing of the backend is left on a node.
func withoutIPsec(t *testing.T, n *lab.Node, why string) {
	t.Helper()
	eventually(t, why, "", func(ctx context.Context) (string, error) {
		out, err := try(ctx, n.Namespaces, "%s", `ip xfrm policy | grep '10[.]5[.]' || true; ip xfrm state; ip rule | grep 220 || true
			ls /run/flannel/strongswan.conf 2>/dev/null || true`+"\n"+strings.ReplaceAll(signalCharon, "kill -%s $p; while kill -0 $p 2>/dev/null; do sleep 0.1; done", "echo charon $p"))
		return words(out), err
	})
}

// Packets between pods are encrypted, and none is lost when flanneld is restarted or killed. Nodes change from and to other
// backends while they run.
func TestIPsec(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, ipsec, atOnce)
	n := l.Nodes[0]
	in(t, l.Infra.Namespaces, "tcpdump -nlpi any net 10.5.0.0/16 >/run/plain 2>/run/tcpdump & tcpdump -nlpi any esp >/run/esp 2>/dev/null &")
	within(t, "tcpdump listens", func() error {
		_, err := try(t.Context(), l.Infra.Namespaces, "grep listening /run/tcpdump")
		return err
	})
	if v := leases(t, l)[ours(t, l, n)[0]]; v.BackendType != "ipsec" || v.BackendData != nil {
		t.Errorf("the lease is %+v", v)
	}
	leavesNothing(t, l)
	a, b := pair(t, l)
	reaches(t, "encrypted", a, b.IP4)
	talk(t, a, b, a.IP4, b.IP4, lab.Outside4)
	inFullSize(t, a, b, "1423")
	hasPolicies(t, l, n, "policies")

	f := flood(t, a, b)
	restartAll(t, l, func(n *lab.Node) error { _, err := n.Stop(t.Context()); return err }, atOnce)
	restartAll(t, l, (*lab.Node).Kill, atOnce) // a configuration below that replaces another one on trial would not come into force
	replaced := func(rekey string) {
		t.Helper()
		const keys = swanctl + "--list-sas --raw 2>/dev/null | grep -oE '(initiator-spi|spi-in)=[0-9a-f]+'"
		before := in(t, n.Namespaces, keys)
		within(t, "there is something to rekey", func() error { // after those of IKE, its children are nobody's for a moment
			_, err := try(t.Context(), n.Namespaces, "%s", swanctl+"--rekey "+rekey)
			return err
		})
		within(t, "new keys", func() error {
			after, err := try(t.Context(), n.Namespaces, keys)
			if err == nil && after == before {
				err = fmt.Errorf("the keys are those of before: %s", after)
			}
			return err
		})
	}
	replaced("--ike $(" + connections + ")")
	f.checkNoLoss(t, "restarts, and new keys of IKE")
	// The peer may use the new keys of ESP before we have them: see the documentation.
	replaced("--child $(" + swanctl + "--list-sas --raw 2>/dev/null | grep -oE 'name=[0-9./]+-[0-9./]+-[0-9a-f]+' | head -n 1 | cut -d = -f 2)")
	reaches(t, "by new keys of ESP", a, b.IP4)
	in(t, n.Namespaces, fmt.Sprintf(signalCharon, "KILL"))
	reaches(t, "by the keys of a killed charon", a, b.IP4)
	within(t, "another charon has negotiated keys", func() error { return says(t, n, "INSTALLED", "sh", "-c", swanctl+"--list-sas 2>/dev/null") })
	reaches(t, "by the keys of another charon", a, b.IP4)
	if out := in(t, l.Infra.Namespaces, "wc -l </run/esp; cat /run/plain"); strings.HasPrefix(out, "0\n") || strings.Count(out, "\n") > 1 {
		t.Errorf("ESP packets, and unencrypted ones: %.2000s", out)
	}
	for _, n := range l.Nodes {
		if strings.Contains(n.Log(), ipsecSecret[:20]) {
			t.Error("the log has the secret")
		}
		if out := in(t, n.Namespaces, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' ' || true"); strings.Contains(out, ipsecSecret[:20]) {
			t.Error("a process shows the secret")
		}
	}

	for _, other := range []string{`{"Type":"vxlan"}`, `{"Type":"host-gw"}`} {
		must(t, l.SetConfig(t.Context(), l.Config(other)))
		for _, n := range l.Nodes {
			withoutIPsec(t, n, "without ipsec, with "+other)
		}
		reaches(t, other, a, b.IP4)
		must(t, l.SetConfig(t.Context(), l.Config(ipsec)))
		for _, n := range l.Nodes {
			hasPolicies(t, l, n, "back from "+other)
		}
		reaches(t, "back from "+other, a, b.IP4)
	}
	// The packets by host-gw show that unencrypted ones would have been noticed.
	within(t, "tcpdump sees unencrypted packets", func() error { _, err := try(t.Context(), l.Infra.Namespaces, "grep 10.5. /run/plain"); return err })

	stopped(t, n)
	in(t, n.Namespaces, l.Flanneld()+" handback 2>&1")
	if out, err := policies(t.Context(), n); err != nil || strings.Contains(out, "/24-") || strings.Contains(out, "block") || strings.Count(out, "reqid 11") != 3 {
		t.Errorf("after handback: %s (%v)", out, err)
	}
	reaches(t, "after handback, without a charon", a, b.IP4)
	in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
	withoutIPsec(t, n, "after cleanup")
}

// leavesNothing sends packets that no pod gets, of which TestIPsec must see none unencrypted. Some are to pods of the first
// node, which has none yet, and so has no bridge to which its own subnet is routed. Others are to a subnet of no node, for
// which there is no policy with ESP.
func leavesNothing(t *testing.T, l *lab.Lab) {
	t.Helper()
	n, other := l.Nodes[0], l.Nodes[1]
	first := pod(t, other, "first")
	hasPolicies(t, l, other, "policies of a node with a pod")
	within(t, "a decrypted packet finds no pod", func() error {
		if _, err := try(t.Context(), first.Namespaces, "ping -c1 -W1 %s.1 || true", strings.TrimSuffix(ours(t, l, n)[0], ".0-24")); err != nil {
			return err
		}
		_, err := try(t.Context(), l.Infra.Namespaces, "grep ESP /run/esp")
		return err
	})
	in(t, first.Namespaces, "ping -c3 -i0.2 -W1 10.5.0.1 || true")
	shell(t, other.Namespaces, "ping -c3 -i0.2 -W1 -I %s.1 10.5.0.1 || true", strings.TrimSuffix(ours(t, l, other)[0], ".0-24"))
}

func TestIPsecDualStack(t *testing.T) {
	t.Parallel()
	l := testIPv4Alone(t, ipsec, "ipsec")
	within(t, "a dual-stack peer has a connection", func() error {
		return says(t, l.Nodes[0], "10.5.7.0/24-192.168.100.77", "sh", "-c", connections)
	})
	must(t, silent(t, l.Nodes[0], "fd05:", "ip", "xfrm", "policy")) // the connection has its policies
}

// Everything that others change in the kernel or in charon is restored, and what belongs to a peer goes with it.
func TestIPsecDrift(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, ipsec+apart, atOnce)
	n := l.Nodes[0]
	a, b := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	own, other := strings.Replace(ours(t, l, n)[0], "-", "/", 1), strings.Replace(ours(t, l, l.Nodes[1])[0], "-", "/", 1)
	const gone = "10.5.77.0-24"
	putLease(t, l, gone, &value{PublicIP: "192.168.100.77", BackendType: "ipsec"})
	within(t, "another peer has a connection", func() error {
		return says(t, n, "10.5.77.0/24-192.168.100.77", "sh", "-c", connections)
	})
	putLease(t, l, gone, nil)
	hasPolicies(t, l, n, "without that peer")

	vars := fmt.Sprintf("OWN=%s OTHER=%s; SWAN='env %s'; ", own, other, swanctl)
	for _, c := range []drift{
		{"outgoing policy deleted", "ip xfrm policy del src $OWN dst $OTHER dir out"},
		{"incoming policies deleted", "for d in in fwd; do ip xfrm policy del src $OTHER dst $OWN dir $d; done"},
		{"policies flushed", "ip xfrm policy flush"},
		{"policy to elsewhere", "ip xfrm policy update src $OWN dst $OTHER dir out tmpl src 192.168.100.11 dst 192.168.100.77 proto esp reqid 11 mode tunnel"},
		{"policy without encryption", "ip xfrm policy update src $OWN dst $OTHER dir out"},
		{"policy added", "ip xfrm policy add src $OWN dst 10.5.0.0/24 dir out tmpl src 192.168.100.11 dst 192.168.100.77 proto esp reqid 11 mode tunnel"},
		{"blocking policy deleted", "ip xfrm policy del src $OWN dst 10.5.0.0/16 dir out"},
		{"blocking policy allows", fmt.Sprintf("ip xfrm policy update src $OWN dst 10.5.0.0/16 dir out priority %d", localPriority+1)},
		{"local policy blocks", fmt.Sprintf("ip xfrm policy update src $OWN dst $OWN dir out action block priority %d", localPriority)},
		{"keys deleted from the kernel", "ip xfrm state flush"},
		{"connection unloaded", "$SWAN --load-conns --file /dev/null"},
		{"secret unloaded", "$SWAN --load-creds --clear --file /dev/null; $SWAN --terminate --ike $(" + connections + ")"},
		{"connection terminated", "$SWAN --terminate --ike $(" + connections + ")"},
		{"charon ended", fmt.Sprintf(signalCharon, "TERM")},
		{"charon killed, and its keys deleted", fmt.Sprintf(signalCharon, "KILL") + "; ip xfrm state flush"},
	} {
		in(t, n.Namespaces, vars+c.command)
		hasPolicies(t, l, n, c.name)
		reaches(t, c.name, a, b.IP4)
		becomesReady(t, n)
	}
	hides(t, l, n, map[string][]byte{"secret": []byte(ipsecSecret)}, "charon", "was changed to")
}

// Nodes change from flannel to our flanneld: its policies stay as they are, and that of a peer that is gone is deleted.
// A charon that others have started is used, keeps their connections, and does not end with the backend.
func TestIPsecAdoption(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, ipsec)
	for i, n := range l.Nodes {
		peer := l.Nodes[1-i]
		putLease(t, l, fmt.Sprintf("10.5.2%d.0-24", i+1), &value{PublicIP: n.IP4.String(), BackendType: "ipsec"})
		must(t, n.WriteFile("/run/flannel/subnet.env", fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.2%d.1/24\nFLANNEL_MTU=1423\nFLANNEL_IPMASQ=true\n", i+1)))
		for _, other := range []struct{ subnet, ip string }{{fmt.Sprintf("10.5.2%d.0/24", 2-i), peer.IP4.String()}, {"10.5.88.0/24", "192.168.100.88"}} {
			shell(t, n.Namespaces, `own=10.5.2%d.0/24 other=%s me=%s peer=%s
				ip xfrm policy add src $own dst $other dir out tmpl src $me dst $peer proto esp reqid 11 mode tunnel
				for d in in fwd; do ip xfrm policy add src $other dst $own dir $d tmpl src $peer dst $me proto esp reqid 11 mode tunnel; done`,
				i+1, other.subnet, n.IP4, other.ip)
		}
	}
	n := l.Nodes[0]
	must(t, n.WriteFile("/run/host.conf", `charon-systemd { load = random nonce aes sha1 sha2 hmac kdf gmp openssl gcm drbg kernel-netlink socket-default vici }`))
	must(t, n.WriteFile("/run/host.swan", `connections { vpn { remote_addrs = 192.0.2.1 } }`))
	const host = "STRONGSWAN_CONF=/run/host.conf "
	in(t, n.Namespaces, host+"setsid charon-systemd >/dev/null 2>&1 </dev/null &")
	within(t, "the host's charon has a connection", func() error {
		_, err := try(t.Context(), n.Namespaces, host+"swanctl --load-conns --file /run/host.swan")
		return err
	})
	// Of others.
	in(t, n.Namespaces, `ip xfrm policy add src 10.5.21.0/24 dst 10.5.99.0/24 dir out tmpl src 192.168.100.11 dst 192.168.100.12 proto esp reqid 12 mode tunnel
		ip xfrm state add src 192.168.100.11 dst 192.168.100.12 proto esp spi 0x1001 reqid 12 mode tunnel aead 'rfc4106(gcm(aes))' 0x0102030405060708090a0b0c0d0e0f1011121314 128`)
	const index = "ip -s xfrm policy | grep -A2 -e '10.5.21.0/24 dst 10.5.22.0/24' -e '10.5.22.0/24 dst 10.5.21.0/24' | grep -o 'index [0-9]*' | sort"
	before := in(t, n.Namespaces, index)
	must(t, l.StartAll(t.Context()))
	a, b := pair(t, l)
	reaches(t, "after flannel", a, b.IP4)
	within(t, "the policies of the peer that is gone are deleted", func() error { return silent(t, n, "10.5.88.", "ip", "xfrm", "policy") })
	if after := in(t, n.Namespaces, index); after != before {
		t.Errorf("the policies were replaced: now %s, before %s", after, before)
	}
	stopped(t, n)
	in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
	if out := in(t, n.Namespaces, host+"swanctl --list-conns 2>/dev/null"); !strings.HasPrefix(out, "vpn:") || strings.Contains(out, "10.5.") {
		t.Errorf("after cleanup, the host's charon has %s", out)
	}
	if out := in(t, n.Namespaces, "ip xfrm policy; ip xfrm state"); strings.Count(out, "reqid 12") != 2 || strings.Contains(out, "reqid 11") || strings.Contains(out, "block") {
		t.Errorf("after cleanup, the kernel has %s", out)
	}
}
