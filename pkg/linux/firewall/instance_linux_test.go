package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// Two flannelds on one host have rules of their own: neither writes after the other, and one that is removed leaves the
// other's rules alone. A REJECT at the end is what both must stand before.
func TestTwoOnOneHost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, s := range []seen{seenNFT, seenTables, seenLegacy} {
			sh(t, s.setup+"\niptables-nft -A FORWARD -j REJECT; iptables-legacy -A FORWARD -j REJECT")
			apply := func(name string, network string) int {
				t.Helper()
				f, err := New(firewall.Options{Log: quiet, Instance: name})
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close() //nolint:errcheck // nothing is lost with it
				c := both(s.writer)
				c.V4 = firewall.Family{Network: netip.MustParsePrefix(network + ".0.0/16"), Subnet: netip.MustParsePrefix(network + ".3.0/24")}
				n, err := f.Apply(t.Context(), c)
				if err != nil {
					t.Fatalf("%s, %q: %v", s.name, name, err)
				}
				return n
			}
			apply("", "10.5")
			alone := everything(t)
			for _, step := range []struct {
				name, network string
				writes        bool
			}{{"b0b0b0b", "10.9", true}, {"", "10.5", false}, {"b0b0b0b", "10.9", false}} {
				if n := apply(step.name, step.network); n > 0 != step.writes {
					t.Errorf("%s: %q wrote %d chains", s.name, step.name, n)
				}
			}
			if all := everything(t); !strings.Contains(all, "10.5.0.0/16") || !strings.Contains(all, "b0b0b0b") {
				t.Errorf("%s: both should be there:\n%s", s.name, all)
			}
			if _, err := Cleanup(t.Context(), firewall.Options{Log: quiet, Instance: "b0b0b0b"}, false); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(alone, everything(t)); diff != "" {
				t.Errorf("%s: without the second it is not as before it (-before +after):\n%s", s.name, diff)
			}
			if _, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil {
				t.Error(err)
			}
			sh(t, "iptables-nft -F FORWARD; iptables-legacy -F FORWARD")
		}
	})
}
