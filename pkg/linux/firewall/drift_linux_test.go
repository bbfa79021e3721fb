package firewall

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

func TestDriftIPTablesNFT(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		// No resync: notifications alone must do.
		drift(t, seenNFT, 0, append(iptablesDamages("-nft"),
			"nft delete table ip nat",
			"nft flush ruleset",
			"nft flush chain ip6 filter FORWARD",
			"nft delete chain ip filter FORWARD || nft 'flush chain ip filter FORWARD; delete chain ip filter FORWARD'",
			"nft flush chain ip nat POSTROUTING",
		))
	})
}

// Rules of nft in a table of iptables make iptables-save leave out the table. Ours are kept there nevertheless.
func TestTableThatIPTablesCannotRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, time.Second)
		stop := serve(t, f, both(firewall.IPTables))
		defer stop()
		want := seenNFT.show(t)
		within := func(what, script string) {
			t.Helper()
			eventually.Nil(t, what, func() error {
				if err := exec.Command("sh", "-c", script).Run(); err != nil {
					return fmt.Errorf("%w\n%s", err, sh(t, "nft list table ip nat"))
				}
				return nil
			})
			time.Sleep(2 * minInterval) // the answer to its own writing
		}
		sh(t, "nft insert rule ip nat POSTROUTING ip saddr '{10.5.0.0/16, 10.6.0.0/16}' masquerade")
		if out := sh(t, "iptables-nft-save -t nat"); !strings.Contains(out, "incompatible") {
			t.Fatalf("iptables-save can read it after all:\n%s", out)
		}
		sh(t, "nft delete rule ip nat POSTROUTING handle $(nft -a list chain ip nat POSTROUTING | sed -n 's/.*FLANNEL.*handle //p')")
		within("our jump is last, and there once", `
			nft list chain ip nat POSTROUTING | grep -A1 10.6 | grep -q "jump FLANNEL-POSTRTG"
			test $(nft list chain ip nat POSTROUTING | grep -c FLANNEL) = 1`)
		sh(t, "nft add rule ip nat FLANNEL-POSTRTG ip saddr '{1.2.3.4, 1.2.3.5}' drop")
		within("foreign rule gone from our chain", "! nft list chain ip nat FLANNEL-POSTRTG | grep 1.2.3.4")
		eventually.Nil(t, "nothing is written although nobody changes anything", func() error { // the answer to its own writing may be late
			rules := sh(t, "nft -a list table ip nat")
			time.Sleep(1500 * time.Millisecond) // in which nothing may be written
			if now := sh(t, "nft -a list table ip nat"); now != rules {
				return fmt.Errorf("the rules were\n%s\nand are\n%s", rules, now)
			}
			return nil
		})
		sh(t, "nft delete rule ip nat POSTROUTING handle $(nft -a list chain ip nat POSTROUTING | sed -n 's/.*10.6.*handle //p')")
		settled(t, seenNFT, want)
	})
}

func TestDriftIPTablesLegacy(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		// The kernel tells nothing about these: the resync finds them.
		drift(t, seenLegacy, 300*time.Millisecond, iptablesDamages("-legacy"))
	})
}

func TestDriftNFTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		drift(t, seenTables, 0, []string{
			"nft flush chain ip flannel-ipv4 postrtg",
			"nft flush table ip6 flannel-ipv6",
			"nft delete table ip flannel-ipv4",
			"nft flush ruleset",
			"nft insert rule ip flannel-ipv4 postrtg ip saddr 10.9.0.0/16 return",
			"nft add rule ip flannel-ipv4 forward ct state invalid drop",
			"nft delete rule ip flannel-ipv4 postrtg handle $(nft -a list chain ip flannel-ipv4 postrtg | sed -n 's/.*4000.*handle //p')",
			"nft replace rule ip flannel-ipv4 forward handle $(nft -a list chain ip flannel-ipv4 forward | sed -n 's/.*saddr.*handle //p') ip saddr 10.5.0.0/17 accept",
			// Differs from ours by one expression that we do not use.
			"nft replace rule ip flannel-ipv4 forward handle $(nft -a list chain ip flannel-ipv4 forward | sed -n 's/.*saddr.*handle //p') ip saddr 10.5.0.0/16 limit rate 1/second counter accept comment '\"flanneld forward\"'",
			"nft add chain ip flannel-ipv4 foreign",
			"nft add set ip flannel-ipv4 foreign '{type ipv4_addr;}'",
			"nft chain ip flannel-ipv4 forward '{policy drop;}'",
			"nft 'flush chain ip flannel-ipv4 forward; delete chain ip flannel-ipv4 forward; add chain ip flannel-ipv4 forward'",
			"nft add table ip flannel-ipv4 '{flags dormant;}'",
		})
	})
}
