package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// iptablesDrifts are changes of our rules by other programs. $c is iptables or
// ip6tables of the kind in use.
var iptablesDrifts = []drift{
	{"our nat chain flushed", "$c -t nat -F FLANNEL-POSTRTG"},
	{"our filter chain flushed", "$c -F FLANNEL-FWD"},
	{"jump deleted", "$c -t nat -D POSTROUTING 1"},
	{"POSTROUTING flushed", "$c -t nat -F POSTROUTING"},
	{"FORWARD flushed", "$c -F FORWARD"},
	{"everything flushed and deleted", "$c -t nat -F; $c -t nat -X; $c -F; $c -X"},
	{"jump doubled", "$c -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG"},
	{"another's rule in our chain", "$c -t nat -I FLANNEL-POSTRTG -j RETURN"},
}

var nftablesDrifts = []drift{
	{"chain flushed", "nft flush chain ip flannel-ipv4 postrtg"},
	{"chain of IPv6 flushed", "nft flush chain ip6 flannel-ipv6 postrtg"},
	{"chain deleted", "nft flush chain ip flannel-ipv4 forward; nft delete chain ip flannel-ipv4 forward"},
	{"table deleted", "nft delete table ip flannel-ipv4"},
	{"both tables deleted", "nft delete table ip flannel-ipv4; nft delete table ip6 flannel-ipv6"},
	{"all rules of the machine flushed", "nft flush ruleset"},
	{"another's rule in our chain", "nft insert rule ip flannel-ipv4 postrtg return"},
}

// apply changes the rules while pods communicate with each other and with
// addresses outside, and waits for the repairs.
func (w writer) apply(t *testing.T, l *lab.Lab, a, b *lab.Pod) {
	t.Helper()
	n := a.Node
	rules := func(ctx context.Context) (string, error) { return try(ctx, n.Namespaces, "%s", w.rules) }
	want, err := rules(t.Context())
	must(t, err)
	list, prefixes := iptablesDrifts, []string{"c=iptables-", "c=ip6tables-"}
	if w.polled { // each needs a resync, so only the most important ones
		list, prefixes = list[len(list)-3:], prefixes[:1]
	}
	if w.nftables {
		list, prefixes = nftablesDrifts, []string{""}
	}
	var slow time.Duration
	var table strings.Builder
	stream, err := a.Flood(b.IP4, floodRate)
	must(t, err)
	for _, d := range list {
		for _, prefix := range prefixes {
			if prefix != "" {
				prefix += strings.TrimPrefix(w.name, "iptables-") + "; "
			}
			must(t, harm(t, n, prefix+d.command))
			took := eventually(t, d.name, want, rules)
			slow = max(slow, took)
			fmt.Fprintf(&table, "%-8s %-34s %v\n", strings.TrimSuffix(strings.TrimPrefix(prefix, "c="), "; "), d.name,
				took.Round(time.Millisecond))
		}
	}
	sees(t, l, a, b, true)
	r, err := stream.Stop()
	if err != nil || r.Lost > 0 {
		t.Errorf("pod to pod meanwhile: %v: %v", r, err)
	}
	t.Logf("%s: repaired after %v at most; pod to pod meanwhile: %v\n%s", w.name, slow.Round(time.Millisecond), r,
		table.String())
}

// harm runs a command that changes rules. It retries if a repair happened
// between its steps.
func harm(t *testing.T, n *lab.Node, command string) error {
	t.Helper()
	_, err := machine.Until(t.Context(), timeout, func(ctx context.Context) error {
		_, err := try(ctx, n.Namespaces, "%s", command)
		return err
	})
	return err
}
