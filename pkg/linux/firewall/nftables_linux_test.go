package firewall

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/nettest"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// nftGolden is how nft, the program, reads what we write.
const nftGolden = `table ip flannel-ipv4 {
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0x4000 counter return comment "flanneld masq"
		ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 counter return comment "flanneld masq"
		ip saddr 10.5.0.0/16 ip daddr 10.5.34.0/24 counter return comment "flanneld masq"
		ip saddr != 10.5.0.0/16 ip daddr 10.5.34.0/24 counter return comment "flanneld masq"
		ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 counter masquerade fully-random comment "flanneld masq"
		ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 counter masquerade fully-random comment "flanneld masq"
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr 10.5.0.0/16 counter accept comment "flanneld forward"
		ip daddr 10.5.0.0/16 counter accept comment "flanneld forward"
	}
}
table ip6 flannel-ipv6 {
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0x4000 counter return comment "flanneld masq"
		ip6 saddr 2001:cafe:42:1::/64 ip6 daddr 2001:cafe:42::/56 counter return comment "flanneld masq"
		ip6 saddr 2001:cafe:42::/56 ip6 daddr 2001:cafe:42:1::/64 counter return comment "flanneld masq"
		ip6 saddr != 2001:cafe:42::/56 ip6 daddr 2001:cafe:42:1::/64 counter return comment "flanneld masq"
		ip6 saddr 2001:cafe:42::/56 ip6 daddr != ff00::/8 counter masquerade fully-random comment "flanneld masq"
		ip6 saddr != 2001:cafe:42::/56 ip6 daddr 2001:cafe:42::/56 counter masquerade fully-random comment "flanneld masq"
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip6 saddr 2001:cafe:42::/56 counter accept comment "flanneld forward"
		ip6 daddr 2001:cafe:42::/56 counter accept comment "flanneld forward"
	}
}
`

// nftList leaves out what differs between versions of nft and from run to run.
func nftList(t *testing.T) string {
	t.Helper()
	out := regexp.MustCompile(` packets \d+ bytes \d+`).ReplaceAllString(sh(t, "nft list ruleset"), "")
	return regexp.MustCompile(`\b0x0+`).ReplaceAllString(out, "0x")
}

func TestNFTablesText(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.NFTables))
		got := nftList(t)
		if diff := cmp.Diff(nftGolden, got); diff != "" {
			t.Errorf("rules as nft lists them (-want +got):\n%s", diff)
		}
		// Prefixes of any length, also those that end within a byte, mean what they say.
		for _, network := range []string{"10.64.0.0/10", "10.0.0.0/8", "192.168.128.0/17", "172.16.5.16/28", "10.1.2.0/23"} {
			c := both(firewall.NFTables)
			c.V4 = firewall.Family{Network: netip.MustParsePrefix(network), Subnet: netip.MustParsePrefix(network)}
			apply(t, f, c)
			if n := apply(t, f, c); n != 0 {
				t.Errorf("%s: a second Apply changed %d chains", network, n)
			}
			again := open(t, 0)
			if n := apply(t, again, c); n != 0 {
				t.Errorf("%s: a restart changed %d chains", network, n)
			}
			again.Close()
			if got := sh(t, "nft list table ip flannel-ipv4"); strings.Count(got, "addr "+network)+strings.Count(got, "addr != "+network) != 11 {
				t.Errorf("%s: nft lists\n%s", network, got)
			}
		}
	})
}

// A table that flannel left, made with the nft program, gets our rules in one go. Its chains stay registered as they were.
func TestNFTablesAdoption(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `nft -f - <<-E
			table ip flannel-ipv4 {
				comment "rules for flannel-ipv4"
				chain forward { comment "chain to accept flannel traffic"; type filter hook forward priority filter; policy accept;
					ip saddr 10.5.0.0/16 accept
				}
				chain postrtg { type nat hook postrouting priority srcnat; policy accept;
					meta mark 0x4000 return
					ip saddr 10.5.34.0/24 ip daddr 10.5.0.0/16 return
				}
			}
			E`)
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.NFTables))
		// What nft keeps for people, and the order of the chains, means nothing.
		chains, six, _ := strings.Cut(strings.TrimPrefix(nftGolden, "table ip flannel-ipv4 {\n"), "}\ntable ip6")
		postrouting, forward, _ := strings.Cut(chains, "\n\n")
		comment := "\t\tcomment \"chain to accept flannel traffic\"\n\t\ttype"
		want := "table ip flannel-ipv4 {\n\tcomment \"rules for flannel-ipv4\"\n" + strings.Replace(forward, "\t\ttype", comment, 1) +
			"\n" + postrouting + "\n}\ntable ip6" + six
		if diff := cmp.Diff(want, nftList(t)); diff != "" {
			t.Errorf("rules as nft lists them (-want +got):\n%s", diff)
		}
	})
}

// Of two tables that translate one connection the kernel asks the younger one first. A repair does not make ours younger.
func TestNFTablesRepairKeepsOrder(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, topology)
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.NFTables))
		sh(t, `ip addr add 192.168.7.9/24 dev outside
			nft -f - <<-E
			table ip egress {
				chain postrouting {
					type nat hook postrouting priority srcnat; policy accept;
					ip saddr 10.5.34.0/24 ip daddr 192.168.7.0/24 snat to 192.168.7.9
				}
			}
			E`)
		for _, damage := range []string{"true", "nft flush table ip flannel-ipv4", "nft insert rule ip flannel-ipv4 postrtg ip saddr 10.9.0.0/16 return"} {
			sh(t, damage)
			f.places[0].needsCheck = true
			apply(t, f, both(firewall.NFTables))
			receiver := flows[0].listen(t)
			if got, err := flows[0].send(t, receiver); err != nil || got.String() != "192.168.7.9" {
				t.Errorf("after %q a pod comes from %v (%v), want the address that another table gives it", damage, got, err)
			}
			receiver.Close()
			if out := sh(t, "nft list table ip flannel-ipv4"); strings.Count(out, "counter") != 8 {
				t.Errorf("after %q our rules are\n%s", damage, out)
			}
		}
	})
}

// What is saved of our tables can be loaded again, in every mode and with prefixes of any length.
func TestNFTablesSaved(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, 0)
		defer f.Close()
		for _, c := range []firewall.Config{
			both(firewall.NFTables),
			{Writer: firewall.NFTables, V4: both(firewall.NFTables).V4, Masquerade: true},
			{Writer: firewall.NFTables, V6: both(firewall.NFTables).V6, Forward: true, Masquerade: true},
			{Writer: firewall.NFTables, V4: firewall.Family{Network: netip.MustParsePrefix("10.64.0.0/10"), Subnet: netip.MustParsePrefix("10.64.5.16/28")}, Masquerade: true, Forward: true},
			{Writer: firewall.NFTables, V6: firewall.Family{Network: netip.MustParsePrefix("fd00:4200::/23"), Subnet: netip.MustParsePrefix("fd00:4200:1::/65")}, Masquerade: true, RandomFully: true},
		} {
			apply(t, f, c)
			nstest.CheckSavedRules(t, nettest.Tool(t, "image/start"))
		}
	})
}
