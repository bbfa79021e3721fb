//go:build kernels

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// association is a security association of the kernel.
type association struct {
	form    string // the algorithm, the length of the key in hexadecimal digits with 0x, which contains four bytes of salt, and "espinudp"
	packets int    // that it has encrypted or decrypted
}

// associations returns the security associations of a node by their SPIs.
func associations(ctx context.Context, n *lab.Node) (map[string]association, error) {
	out, err := n.Run(ctx, "ip", "-s", "xfrm", "state")
	all := map[string]association{}
	spi, ours := "", false
	for line := range strings.Lines(out) {
		f, sa := strings.Fields(line), all[spi]
		switch {
		case len(f) > 5 && f[0] == "proto":
			spi, ours = f[3], strings.HasPrefix(f[5], "11(") // the reqid
			continue
		case len(f) > 2 && f[0] == "aead":
			sa.form = fmt.Sprintf("%s %d", f[1], len(f[2]))
		case len(f) > 2 && f[0] == "encap":
			sa.form += " " + f[2]
		case len(f) == 2 && strings.HasSuffix(f[0], "(bytes),"):
			_, err2 := fmt.Sscanf(f[1], "%d(packets)", &sa.packets)
			err = errors.Join(err, err2)
		}
		if ours {
			all[spi] = sa
		}
	}
	return all, err
}

// spis returns a line for each security association of a node.
func spis(ctx context.Context, n *lab.Node) (string, error) {
	all, err := associations(ctx, n)
	var out strings.Builder
	for _, spi := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintln(&out, spi)
	}
	return out.String(), err
}

// used returns the security associations by which two pods of different nodes talk: their forms by their SPIs. Others may
// stay on a node for a while: if a peer ends a negotiation that this node has completed, charon does not tell this node.
func used(ctx context.Context, n *lab.Node, a, b *lab.Pod) (map[string]string, error) {
	before, err1 := associations(ctx, n)
	_, err2 := a.Reach(ctx, b.IP4, time.Second)
	_, err3 := b.Reach(ctx, a.IP4, time.Second)
	after, err4 := associations(ctx, n)
	forms := map[string]string{}
	for spi, sa := range after {
		if sa.packets > before[spi].packets {
			forms[spi] = sa.form
		}
	}
	return forms, errors.Join(err1, err2, err3, err4)
}

// hasKeys waits until the security associations by which two pods of different nodes talk are of one form.
func hasKeys(t *testing.T, l *lab.Lab, a, b *lab.Pod, want, why string) {
	t.Helper()
	for _, n := range l.Nodes {
		eventually(t, why, want, func(ctx context.Context) (string, error) {
			forms, err := used(ctx, n, a, b)
			return strings.Join(slices.Compact(slices.Sorted(maps.Values(forms))), "\n"), err
		})
	}
}

// The options are changed while the nodes run: the encapsulation and the algorithms, the secret, and a proposal that charon
// refuses. Then another flanneld of a host wants ipsec, too.
func TestIPsecOptions(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, ipsec, atOnce)
	n, other := l.Nodes[0], l.Nodes[1]
	a, b := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	hasKeys(t, l, a, b, "rfc4106(gcm(aes)) 42", "the default")
	// arrived returns how many packets of ESP arrive at n while the pods talk, without and in UDP. In UDP, messages of IKE begin
	// with four zeros.
	arrived := func() (esp, udp int) {
		t.Helper()
		in(t, n.Namespaces, `nft 'add table ip watch; delete table ip watch; add table ip watch
			add chain ip watch arriving { type filter hook prerouting priority raw; }
			add rule ip watch arriving ip protocol esp counter; add rule ip watch arriving udp dport 4500 @th,64,32 != 0 counter'`)
		reaches(t, "counted", a, b.IP4)
		reaches(t, "counted", b, a.IP4)
		out := in(t, n.Namespaces, "nft list table ip watch | grep -o 'packets [0-9]*'")
		if _, err := fmt.Sscanf(out, "packets %d\npackets %d", &esp, &udp); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return esp, udp
	}
	if esp, udp := arrived(); esp == 0 || udp > 0 {
		t.Errorf("%d packets of ESP and %d in UDP without UDPEncap", esp, udp)
	}

	set := func(secret, more string) {
		t.Helper()
		must(t, l.SetConfig(t.Context(), l.Config(fmt.Sprintf(`{"Type":"ipsec","PSK":"%s"%s}`, secret, more))))
	}
	const options = `,"UDPEncap":true,"ESPProposal":"aes256gcm16-sha384-ecp384"`
	set(ipsecSecret, options)
	hasKeys(t, l, a, b, "rfc4106(gcm(aes)) 74 espinudp", "other options")
	if esp, udp := arrived(); esp > 0 || udp == 0 {
		t.Errorf("%d packets of ESP and %d in UDP with UDPEncap", esp, udp)
	}
	for _, n := range l.Nodes { // of new pods
		envHas(t, n, "FLANNEL_MTU", "1415")
	}
	inFullSize(t, pod(t, n, "new"), pod(t, other, "new"), "1415")

	before := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		out, err := spis(t.Context(), n)
		must(t, err)
		before[n] = out
	}
	set("other"+ipsecSecret, options)
	for _, n := range l.Nodes {
		within(t, "keys of the other secret", func() error {
			out, err := spis(t.Context(), n)
			for sa := range strings.Lines(out) {
				if strings.Contains(before[n], sa) {
					return fmt.Errorf("of before is %s", sa)
				}
			}
			return err
		})
	}
	reaches(t, "with another secret", a, b.IP4)
	// Another charon only has the other secret.
	in(t, other.Namespaces, fmt.Sprintf(signalCharon, "TERM"))
	reaches(t, "with the secret of another charon", a, b.IP4)

	set("other"+ipsecSecret, `,"ESPProposal":"aes256gcm16-ke1_unknown"`)
	for _, n := range l.Nodes {
		within(t, "a refused proposal", func() error { return unready(t, n, "aes256gcm16-ke1_unknown") })
	}
	reaches(t, "by the keys of before the refused proposal", a, b.IP4)
	set(ipsecSecret, "")
	hasKeys(t, l, a, b, "rfc4106(gcm(aes)) 42", "the default again")
	for _, n := range l.Nodes {
		becomesReady(t, n)
	}
	reaches(t, "with the default again", a, b.IP4)

	// A flanneld for another network on the host leaves everything alone, also while the first is down, until that has
	// another backend.
	all := func(ctx context.Context) (string, error) {
		out, err1 := try(ctx, n.Namespaces, "ip xfrm policy; %s", connections)
		all, err2 := spis(ctx, n)
		return out + "\n" + all, errors.Join(err1, err2)
	}
	known, err := all(t.Context())
	must(t, err)
	// untouched checks that nothing of known is gone, and nothing of the other network there. Both nodes may have negotiated,
	// so that keys may still be added.
	untouched := func(why string) {
		t.Helper()
		now, err := all(t.Context())
		must(t, err)
		for line := range strings.Lines(known) {
			if !strings.Contains(now, line) || strings.Contains(now, "10.9.") {
				t.Fatalf("%s: was\n%s\nis\n%s", why, known, now)
			}
		}
	}
	configureSecond(t, l, `{"Type":"ipsec","PSK":"second`+ipsecSecret+`"}`)
	s := &second{t: t, l: l, node: n}
	refused := func(why string) {
		t.Helper()
		s.launch()
		within(t, why, func() error {
			return says(t, n, "[10.9.0.0/16]", "sh", "-c", l.Flanneld()+" "+secondFile+" status --json || true")
		})
		untouched(why)
	}
	refused("another network")
	must(t, n.Kill())
	s.end(syscall.SIGTERM)
	refused("another network, while the first is down")
	must(t, n.Start(atOnce))
	must(t, n.Ready(t.Context()))
	untouched("the first is back")
	reaches(t, "beside another network", a, b.IP4)
	// What another one has made, after both had started at once.
	in(t, n.Namespaces, "ip xfrm policy add src 10.7.1.0/24 dst 10.7.2.0/24 dir out tmpl src 192.168.100.11 dst 192.168.100.77 proto esp reqid 11 mode tunnel")
	within(t, "policies of two networks", func() error { return unready(t, n, "10.7.1.0/24") })
	reaches(t, "beside policies of another network", a, b.IP4)
	hasPolicies(t, l, n, "beside those of another network")
	in(t, n.Namespaces, "ip xfrm policy deleteall src 10.7.1.0/24; ip xfrm policy deleteall dst 10.7.1.0/24")
	becomesReady(t, n)
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	s.ready()
	reaches(t, "by vxlan", a, b.IP4)
}

// No keys of former options stay: not those that the peer begins to negotiate before this node has a new UDPEncap, and not those
// of before a start with other options.
func TestIPsecFormerOptions(t *testing.T) {
	t.Parallel()
	const plain, inUDP = "rfc4106(gcm(aes)) 42", "rfc4106(gcm(aes)) 42 espinudp"
	set := func(l *lab.Lab, more string) {
		t.Helper()
		must(t, l.SetConfig(t.Context(), l.Config(fmt.Sprintf(`{"Type":"ipsec","PSK":"%s"%s}`, ipsecSecret, more))))
	}
	l := start(t, lab.Options{Nodes: 2}, strings.TrimSuffix(ipsec, "}")+`,"UDPEncap":true}`, atOnce)
	n, other := l.Nodes[0], l.Nodes[1]
	a, b := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	hasKeys(t, l, a, b, inUDP, "UDPEncap")

	// Messages of IKE_AUTH (exchange 35) from n do not arrive. other gets the new options when one has been sent.
	in(t, other.Namespaces, fmt.Sprintf(`nft 'add table ip hold; add chain ip hold arriving { type filter hook prerouting priority raw; }
		add rule ip hold arriving ip saddr %s udp dport 4500 @th,64,32 0 @th,240,8 35 counter drop'`, n.IP4))
	must(t, other.Signal(syscall.SIGSTOP))
	set(l, "")
	within(t, "n negotiates by the new options", func() error {
		out, err := try(t.Context(), other.Namespaces, "nft list table ip hold | grep -o 'packets [0-9]*'")
		if err == nil && words(out) == "packets 0" {
			err = errors.New(out)
		}
		return err
	})
	must(t, other.Signal(syscall.SIGCONT))
	hasKeys(t, l, a, b, plain, "other negotiates by the new options")
	in(t, other.Namespaces, "nft delete table ip hold") // n repeats its message
	eventually(t, "what n began before has ended", "", func(ctx context.Context) (string, error) {
		return try(ctx, other.Namespaces, "%s", swanctl+"--list-sas --raw 2>/dev/null | grep -o '(unnamed)' || true")
	})
	hasKeys(t, l, a, b, plain, "only the new options")

	for _, c := range []struct{ options, keys string }{
		{`,"UDPEncap":true`, inUDP}, {`,"ESPProposal":"aes256gcm16-sha384-ecp384"`, "rfc4106(gcm(aes)) 74"}, {`,"UDPEncap":true`, inUDP}, {"", plain},
	} {
		for _, n := range l.Nodes {
			must(t, n.Kill())
		}
		set(l, c.options)
		for _, n := range l.Nodes {
			must(t, n.Start(atOnce))
		}
		hasKeys(t, l, a, b, c.keys, "at the start: "+c.options)
		reaches(t, "at the start: "+c.options, a, b.IP4)
	}
	known, err := used(t.Context(), n, a, b)
	must(t, err)
	must(t, n.Kill())
	must(t, n.Start(atOnce))
	must(t, n.Ready(t.Context()))
	now, err := associations(t.Context(), n)
	must(t, err)
	for spi := range known {
		if _, still := now[spi]; !still {
			t.Errorf("a restart ended the security association %s; there are %v", spi, now)
		}
	}
}

// Nodes that try ipsec keep it only if their bridges answer each other. Where IKE does not pass, they go back.
func TestIPsecRollout(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`, "--config-stagger=40s")
	a, b := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	n := l.Nodes[0]
	in(t, n.Namespaces, `nft 'add table inet faulty; add chain inet faulty underlay { type filter hook prerouting priority -300; }
		add rule inet faulty underlay udp dport { 500, 4500 } drop'`)
	must(t, l.SetConfig(t.Context(), l.Config(ipsec)))
	logged(t, n, 0, "cause=config-reverted")
	within(t, "vxlan is back", func() error { return says(t, n, "vxlan id 1 ", "ip", "-d", "link", "show", "flannel.1") })
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	for _, n := range l.Nodes {
		within(t, "nothing is pending", func() error { return has(t, n, "flanneld_config_pending 0") })
	}
	reaches(t, "back", a, b.IP4)
	in(t, n.Namespaces, "nft delete table inet faulty")
	for _, n := range l.Nodes { // with more time to negotiate
		must(t, n.Kill())
		must(t, n.Start("--config-stagger=3m"))
		must(t, n.Ready(t.Context()))
	}
	must(t, l.SetConfig(t.Context(), l.Config(ipsec)))
	for _, n := range l.Nodes {
		within(t, n.Name+" keeps ipsec", func() error {
			if err := silent(t, n, "flannel", "ip", "link"); err != nil {
				return err
			}
			return has(t, n, "flanneld_config_pending 0")
		})
	}
	reaches(t, "with ipsec", a, b.IP4)
	hasKeys(t, l, a, b, "rfc4106(gcm(aes)) 42", "the default")
}
