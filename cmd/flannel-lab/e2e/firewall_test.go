package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// writer is a way to write rules to the kernel.
type writer struct {
	name     string
	multi    string // the program behind iptables, put first in PATH
	nftables bool
	// rules is a command that prints our rules and the jumps to them.
	rules  string
	polled bool // the kernel does not notify changes, so they are noticed at the next --iptables-resync
	// blocks means that a DROP of another program in FORWARD blocks pods although we
	// accept them, as documented for nftables.
	blocks bool
	// policy is a command that sets the policy of FORWARD to %[1]s, DROP or ACCEPT.
	policy string
}

func writers() []writer {
	rules := func(suffix string) string {
		return fmt.Sprintf(`for c in iptables%s ip6tables%s; do
			$c -t nat -S POSTROUTING | grep FLANNEL; $c -t nat -S FLANNEL-POSTRTG; $c -S FORWARD | grep FLANNEL; $c -S FLANNEL-FWD; done 2>/dev/null`, suffix, suffix)
	}
	policy := func(suffix string) string {
		return fmt.Sprintf("iptables%s -P FORWARD %%[1]s; ip6tables%s -P FORWARD %%[1]s", suffix, suffix)
	}
	return []writer{
		{name: "iptables-nft", multi: "xtables-nft-multi", rules: rules("-nft"), policy: policy("-nft")},
		{name: "iptables-legacy", multi: "xtables-legacy-multi", polled: true, rules: rules("-legacy"),
			policy: policy("-legacy")},
		{name: "nftables", multi: "xtables-nft-multi", nftables: true, blocks: true, policy: policy("-nft"),
			rules: "(nft list table ip flannel-ipv4; nft list table ip6 flannel-ipv6) | sed 's/counter packets [0-9]* bytes [0-9]*//'"},
	}
}

// use makes iptables on a node that of the writer, as the alternatives of a
// distribution do.
func (w writer) use(t *testing.T, n *lab.Node) {
	t.Helper()
	dir := "/run/" + w.name
	shell(t, n.Namespaces, `mkdir -p %[1]s; for c in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -sf $(command -v %[2]s) %[1]s/$c; done`, dir, w.multi)
	n.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
}

// config returns a network configuration for the writer.
func (w writer) config(l *lab.Lab) string {
	return l.Config(fmt.Sprintf(`{"Type":"vxlan"},"EnableNFTables":%t`, w.nftables))
}

// places returns the kinds of rules on a node that contain any of ours.
func places(ctx context.Context, n *lab.Node) (string, error) {
	out, err := try(ctx, n.Namespaces, `for c in nft legacy; do for f in iptables ip6tables; do
			if $f-$c-save 2>/dev/null | grep -qi flannel; then echo iptables-$c; fi; done; done
		nft list tables | grep flannel-ipv | sed 's/.*/nftables/'`)
	return strings.Join(strings.Fields(out), " "), err
}

// seen sends a datagram in a new flow and returns the source address that
// arrives.
func seen(ctx context.Context, from, to machine.Namespaces, at netip.Addr) (netip.Addr, error) {
	var receiver, sender *net.UDPConn
	err := to.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer receiver.Close()
	err = from.Do(func() (err error) {
		sender, err = net.DialUDP("udp", nil, receiver.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer sender.Close()
	_, err = sender.Write([]byte("who am I?"))
	deadline := receiver.SetReadDeadline(time.Now().Add(timeout))
	_, source, readErr := receiver.ReadFromUDPAddrPort(make([]byte, 16))
	return source.Addr().Unmap(), errors.Join(err, deadline, readErr, ctx.Err())
}

// sees checks the source address that a pod on another node and an address
// outside see of a pod, in both families.
func sees(t *testing.T, l *lab.Lab, a, b *lab.Pod, masquerade bool) {
	t.Helper()
	outside4, outside6 := a.IP4, a.IP6
	if masquerade {
		outside4, outside6 = a.Node.IP4, a.Node.IP6
	}
	for _, c := range []struct {
		who      string
		to       machine.Namespaces
		at, want netip.Addr
	}{
		{"the pod on the other node", b.Namespaces, b.IP4, a.IP4},
		{"the pod on the other node", b.Namespaces, b.IP6, a.IP6},
		{"the world outside", l.Infra.Namespaces, lab.Outside4, outside4},
		{"the world outside", l.Infra.Namespaces, lab.Outside6, outside6},
	} {
		if got, err := seen(t.Context(), a.Namespaces, c.to, c.at); err != nil || got != c.want {
			t.Errorf("%s sees the pod %s as %v (%v), want %v", c.who, c.at, got, err, c.want)
		}
	}
}

// connected checks whether two pods on two nodes reach each other, in both
// families.
func connected(t *testing.T, a, b *lab.Pod, want bool) {
	t.Helper()
	var pings sync.WaitGroup
	for _, at := range []netip.Addr{b.IP4, b.IP6} {
		pings.Go(func() {
			if want {
				if err := a.Ping(t.Context(), at); err != nil {
					t.Errorf("%s does not reach %s: %v", a.Name, at, err)
				}
			} else if a.Answers(t.Context(), at) {
				t.Errorf("%s reaches %s", a.Name, at)
			}
		})
	}
	pings.Wait()
}

func TestFirewall(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`)
	// Without masquerade, an address outside sees the address of the pod, to which it
	// has no route.
	shell(t, l.Infra.Namespaces, "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done")
	must(t, l.StartAll(t.Context()))
	n := l.Nodes[0]
	a, b := pair(t, l)
	restart := func(w writer, args ...string) {
		t.Helper()
		_, err := n.Stop(t.Context())
		must(t, err)
		must(t, l.SetConfig(t.Context(), w.config(l)))
		w.use(t, n)
		must(t, n.Start(append(args, "-iptables-resync=1")...))
		must(t, n.Ready(t.Context()))
	}
	for _, w := range writers() {
		t.Run(w.name, func(t *testing.T) {
			restart(w)
			eventually(t, "rules in one place alone, of IPv4 and IPv6", w.name+" "+w.name,
				func(ctx context.Context) (string, error) { return places(ctx, n) })
			sees(t, l, a, b, true)
			shell(t, n.Namespaces, w.policy, "DROP")
			connected(t, a, b, !w.blocks)
			shell(t, n.Namespaces, w.policy, "ACCEPT")
			w.apply(t, l, a, b)

			restart(w, "-ip-masq=false")
			sees(t, l, a, b, false)
			restart(w, "-iptables-forward-rules=false")
			sees(t, l, a, b, true)
			shell(t, n.Namespaces, w.policy, "DROP")
			connected(t, a, b, false)
			shell(t, n.Namespaces, w.policy, "ACCEPT")
			restart(w, "-iptables-forward-rules=false", "-ip-masq=false")
			eventually(t, "no rules at all", "", func(ctx context.Context) (string, error) { return places(ctx, n) })
			restart(w) // leave rules of this writer for the next one
		})
	}
	t.Run("switched at run time", func(t *testing.T) { switchWriters(t, l, a, b) })
}

// switchWriters changes from one writer to the other and back while packets
// flow.
func switchWriters(t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	all := writers()
	f := flood(t, a, b)
	for _, w := range []writer{all[2], all[0], all[2], all[0]} {
		began := time.Now()
		must(t, l.SetConfig(t.Context(), w.config(l)))
		for _, n := range l.Nodes {
			eventually(t, "all rules with "+w.name, w.name+" "+w.name,
				func(ctx context.Context) (string, error) { return places(ctx, n) })
		}
		t.Logf("both nodes use only %s after %v", w.name, time.Since(began).Round(time.Millisecond))
		sees(t, l, a, b, true)
	}
	f.checkNoLoss(t, "writers switched 4 times")
}
