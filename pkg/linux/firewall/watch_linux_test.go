package firewall

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// heard subscribes, runs a script and returns what the notifications were about.
func heard(t *testing.T, script string) (n topics) {
	t.Helper()
	const end = "no-business-of-ours"
	over := make(chan struct{}, 1)
	l, err := rtnetlink.Listen(rtnetlink.Notifications{Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES},
		Each: func(h rtnetlink.Header, body []byte) error {
			if n |= topicsOf(h.Kind, body); bytes.Contains(body, []byte(end)) {
				reconcile.Notify(over)
			}
			return nil
		},
		Lost: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, script+"; nft add table inet "+end+"; nft delete table inet "+end)
	select {
	case <-over:
	case <-time.After(patience):
		t.Fatalf("%s: not heard to its end", script)
	}
	if err := l.Close(); err != nil { // it writes n until then
		t.Fatal(err)
	}
	return n
}

func TestInterest(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, "for f in iptables-nft ip6tables-nft; do $f -t nat -A OUTPUT -j RETURN; $f -A OUTPUT -j RETURN; done") // makes the tables
		for _, c := range []struct {
			script string
			want   topics
		}{
			{"iptables-nft -t nat -N KUBE-SERVICES", 0},
			{"iptables-nft -t nat -A KUBE-SERVICES -j RETURN", 0},
			{"iptables-nft -t nat -A POSTROUTING -j RETURN", topicIPTables4},
			{"ip6tables-nft -A FORWARD -j RETURN", topicIPTables6},
			{"iptables-nft -A INPUT -j RETURN", 0},
			{"iptables-nft -t nat -N FLANNEL-POSTRTG", topicIPTables4},
			{"iptables-nft -t nat -A FLANNEL-POSTRTG -j RETURN", topicIPTables4},
			{"iptables-nft -t mangle -A POSTROUTING -j RETURN", 0},
			{"nft delete table ip nat", topicIPTables4},
			{"nft add table ip flannel-ipv4", topicNFT4},
			{"nft add set ip flannel-ipv4 s '{type ipv4_addr;}'", topicNFT4},
			{"nft add element ip flannel-ipv4 s '{1.2.3.4}'", topicNFT4},
			{"nft add table ip6 flannel-ipv6; nft delete table ip6 flannel-ipv6", topicNFT6},
			{"nft add table inet flannel-ipv4", 0},
			{"nft flush ruleset", topicNFT4 | topicIPTables4 | topicIPTables6},
		} {
			if got := heard(t, c.script); got != c.want {
				t.Errorf("%s: notes %b, want %b", c.script, got, c.want)
			}
		}
	})
}

// A storm in a chain of ours wakes the daemon a few times a second, one elsewhere never.
func TestStorm(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		// heard returns what f has heard of IPv4 since it was last called. Notifications come in the order of the
		// changes: once that of IPv6 is there, so are all.
		heard := func() topics {
			sh(t, "nft add rule ip6 filter FORWARD counter")
			eventually.True(t, "all is heard", func() bool { return topics(f.pending.Load())&topicIPTables6 != 0 })
			return topics(f.pending.Swap(0)) &^ topicIPTables6
		}
		sh(t, "iptables-nft -t nat -N KUBE")
		heard()
		done := make(chan struct{})
		go func() {
			defer close(done)
			sh(t, `nft -f - <<-E
				$(for i in $(seq 5000); do echo "add rule ip filter FORWARD ip saddr 10.9.0.1 counter return"; done)
				E
				for i in $(seq 100); do nft "add rule ip filter FORWARD counter; flush chain ip filter FORWARD"; done`)
		}()
		wakes, start := 0, time.Now()
		for over := false; !over || wakes == 0; {
			select {
			case <-f.Changes():
				wakes++
			case <-done:
				over, done = true, nil
			case <-time.After(patience):
				t.Fatal("a storm in our chain wakes nobody")
			}
		}
		took := time.Since(start)
		t.Logf("%d wake-ups in %v by a storm in FORWARD", wakes, took.Round(time.Millisecond))
		if most := int(took/minInterval) + 2; wakes > most { // one at once, and one that waited
			t.Errorf("%d wake-ups by a storm in our chain, want at most %d", wakes, most)
		}
		if about := heard(); about != topicIPTables4 {
			t.Errorf("a storm in our chain is about %b", about)
		}
		sh(t, `nft -f - <<-E
			$(for i in $(seq 5000); do echo "add rule ip nat KUBE ip saddr 10.9.0.1 counter return"; done)
			E
			nft flush chain ip nat KUBE`)
		if about := heard(); about != 0 {
			t.Errorf("a storm elsewhere is about %b, and wakes the daemon", about)
		}
	})
}

// After the kernel has dropped messages, all topics are pending, though no message that arrived was about one of them.
func TestLoss(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := &Firewall{}
		f.subscribed.Store(uint32(topicNFT4 | topicIPTables6))
		added := make(chan struct{}, 1)
		n := f.notifications(added)
		n.Buffer = 1 // the kernel's minimum, less than two messages of a transaction
		// Held, since the kernel lets a receiver run after each message that fills half of its buffer, and it may lose none.
		full, each := make(chan struct{}), n.Each
		n.Each = func(h rtnetlink.Header, body []byte) error {
			<-full
			return each(h, body)
		}
		l, err := rtnetlink.Listen(n)
		if err != nil {
			t.Fatal(err)
		}
		sh(t, `nft add table ip storm; nft add chain ip storm c; nft -f - <<-E
			$(for i in $(seq 5000); do echo "add rule ip storm c ip saddr 10.9.0.1 counter return"; done)
			E`)
		close(full)
		select {
		case <-added:
		case <-time.After(patience):
			t.Fatal("the loss is not noticed")
		}
		if got := topics(f.pending.Load()); got != topicNFT4|topicIPTables6 {
			t.Errorf("topics %b are pending", got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func FuzzInterest(f *testing.F) {
	f.Add(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE), []byte{2, 0, 0, 0, 8, 0, 1, 0, 'n', 'a', 't', 0})
	f.Add(uint16(unix.NFNL_SUBSYS_NFTABLES<<8), []byte{2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, kind uint16, body []byte) {
		if n := topicsOf(kind, body); n&^allTopics != 0 {
			t.Errorf("notes %b", n)
		}
	})
}
