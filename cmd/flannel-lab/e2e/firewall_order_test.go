package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

const (
	forwardJump = `-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`
	masqJump    = `-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`
)

// A DROP before our jump blocks pods as long as it exists, also after a restart
// of the daemon: one that matches a pod in one family, and one that matches
// everything in the other.
func TestDropBeforeOursCounts(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"vxlan"}`)
	nft, legacy := l.Nodes[0], l.Nodes[1]
	writers()[0].use(t, nft)
	writers()[1].use(t, legacy)
	must(t, l.StartAll(t.Context(), "-iptables-resync=1"))
	a, b := pair(t, l)
	for _, c := range []struct {
		n      *lab.Node
		drop   map[string]string // rule by command
		suffix string
	}{
		{nft, map[string]string{"iptables": fmt.Sprintf("-s %s -j DROP", a.IP4), "ip6tables": "-j DROP"}, "-nft"},
		{legacy, map[string]string{"iptables": "-j DROP", "ip6tables": fmt.Sprintf("-s %s -j DROP", a.IP6)}, "-legacy"},
	} {
		t.Run("iptables"+c.suffix, func(t *testing.T) {
			reachesBoth(t, "before", a, b)
			before := map[string]string{}
			for command, rule := range c.drop {
				shell(t, c.n.Namespaces, "%s%s -I FORWARD %s", command, c.suffix, rule)
				before[command] = shell(t, c.n.Namespaces, "%s%s -S FORWARD", command, c.suffix)
				if !strings.Contains(before[command], "-j DROP\n"+forwardJump) {
					t.Fatalf("%s: FORWARD is\n%s", command, before[command])
				}
			}
			check := func(when string, d time.Duration) {
				t.Helper()
				stopsAll(t, a, d, when, b.IP4, b.IP6)
				for command := range c.drop {
					if after := shell(t, c.n.Namespaces, "%s%s -S FORWARD", command,
						c.suffix); after != before[command] {
						t.Errorf("%s, %s: FORWARD was\n%sis\n%s", when, command, before[command], after)
					}
				}
			}
			check("while the daemon runs", 10*time.Second)
			_, err := c.n.Stop(t.Context())
			must(t, err)
			must(t, c.n.Start("-iptables-resync=1"))
			must(t, c.n.Ready(t.Context()))
			check("after a restart", 3*time.Second)
			for command := range c.drop {
				shell(t, c.n.Namespaces, "%s%s -D FORWARD 1", command, c.suffix)
			}
			reachesBoth(t, "without the DROP", a, b)
		})
	}
}

func reachesBoth(t *testing.T, what string, a, b *lab.Pod) {
	t.Helper()
	reaches(t, what, a, b.IP4)
	reaches(t, what, a, b.IP6)
}

// stopsAll pings addresses for some time, and expects no answer.
func stopsAll(t *testing.T, from *lab.Pod, d time.Duration, when string, to ...netip.Addr) {
	t.Helper()
	var all sync.WaitGroup
	for _, at := range to {
		all.Go(func() {
			if _, err := from.Reach(t.Context(), at, d); !errors.Is(err, machine.ErrNoAnswer) {
				t.Errorf("%s: pings of %s: %v, want: no answer", when, at, err)
			}
		})
	}
	all.Wait()
}
