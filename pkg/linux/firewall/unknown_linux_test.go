package firewall

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// ourRules lists the rules of our chains and those that lead to them, as the kernel has them.
func ourRules(t *testing.T) (lines []string) {
	t.Helper()
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		for _, own := range firewall.Chains() {
			for _, chain := range []string{own.Parent, own.Name} {
				rules, err := readRules(family, own.Table, chain)
				if err != nil && !absent(err) {
					t.Fatal(err)
				}
				for i, r := range rules {
					lines = append(lines, fmt.Sprint(family, chain, i, r.exprs, r.jump))
				}
			}
		}
		text, err := readTable(family, nftPlace{family: family}.table().Name)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.Split(text, "\n")...)
	}
	return lines
}

// Whatever system call of a start fails, the rules that are there stay, none comes twice, by no other writer and in no
// other form; and the next start puts right what is missing.
func TestNoFailedCallTakesARule(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		faults := nstest.NewFaults(t)
		for _, c := range []firewall.Config{both(firewall.IPTables), both(firewall.NFTables)} {
			start := func(n int) (calls int) {
				f := open(t, 0)
				faults.Fail(n, unix.EMFILE)
				_, err := f.Apply(t.Context(), c)
				calls = faults.Fail(0, 0)
				if n == 0 && err != nil {
					t.Fatal(err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
				return calls
			}
			start(0)
			want, step, spoil := ourRules(t), 1, "iptables -D FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD; iptables -t nat -F FLANNEL-POSTRTG"
			if c.Writer == firewall.NFTables {
				step, spoil = 4, "nft flush chain ip flannel-ipv4 forward" // most of the calls are the same
			}
			calls := start(0)
			for n := 1; n <= calls+20; n += step { // putting right takes more calls than looking
				spoiled := n%8 == 1 || n > calls
				if spoiled {
					sh(t, spoil)
				}
				before := ourRules(t)
				start(n)
				after := ourRules(t)
				for _, line := range before {
					if !slices.Contains(after, line) {
						t.Errorf("%s: after call %d failed, this is gone: %.300s", c.Writer, n, line)
					}
				}
				if len(after) > len(want) {
					t.Errorf("%s: after call %d failed, there are %d rules, want %d", c.Writer, n, len(after), len(want))
				}
				if spoiled {
					start(0)
				}
				if now := ourRules(t); !slices.Equal(now, want) {
					t.Fatalf("%s: after call %d failed and all is well again:\n%s", c.Writer, n, cmp.Diff(want, now))
				}
			}
			t.Logf("%s: a start makes %d calls", c.Writer, calls)
		}
	})
}
