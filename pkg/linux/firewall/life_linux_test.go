package firewall

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// foreign are rules and chains of other programs, in every place that we also write to.
const foreign = `
	for v in nft legacy; do for f in iptables ip6tables; do
		$f-$v -t nat -N KUBE-POSTROUTING
		$f-$v -t nat -A KUBE-POSTROUTING -m comment --comment 'kubernetes "service" traffic' -j MASQUERADE
		$f-$v -t nat -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
		$f-$v -N DOCKER-USER
		$f-$v -A FORWARD -j DOCKER-USER
		$f-$v -P FORWARD DROP
		$f-$v -t mangle -A FORWARD -m comment --comment "flanneld forward" -j ACCEPT
	done; done
	nft add table ip flannel-ipv4-foreign
	nft add table inet flannel-ipv4
	nft add chain inet flannel-ipv4 postrtg '{type nat hook postrouting priority 50;}'
	nft add rule inet flannel-ipv4 postrtg counter accept`

var stamp = regexp.MustCompile(`(?m)^#.*\n`)

// everything is the whole of all rules in the namespace, ordered by place.
func everything(t *testing.T) string {
	t.Helper()
	out := sh(t, `for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do echo "[$p]"; $p-save; done
		echo "[nft]"; nft list tables; nft list table inet flannel-ipv4 || true; nft list table ip flannel-ipv4 || true; nft list table ip6 flannel-ipv6 || true`)
	return counters.ReplaceAllString(stamp.ReplaceAllString(out, ""), "")
}

// places names where something of ours is.
func places(t *testing.T) string {
	t.Helper()
	var found []string
	for _, command := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		rules := sh(t, command+"-save 2>/dev/null")
		for _, chain := range []string{"POSTRTG", "FWD"} {
			if strings.Contains(rules, "FLANNEL-"+chain) {
				found = append(found, command+":"+chain)
			}
		}
	}
	for table := range strings.Lines(sh(t, "nft list tables")) {
		if table == "table ip flannel-ipv4\n" || table == "table ip6 flannel-ipv6\n" {
			found = append(found, strings.Fields(table)[2])
		}
	}
	return strings.Join(found, " ")
}

func TestSwitching(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const nft = "iptables-nft:POSTRTG iptables-nft:FWD ip6tables-nft:POSTRTG ip6tables-nft:FWD"
		sh(t, foreign)
		before := everything(t)
		masqOff, forwardOff, off := both(firewall.IPTables), both(firewall.IPTables), both(firewall.IPTables)
		masqOff.Masquerade, forwardOff.Forward, off.Masquerade, off.Forward = false, false, false, false
		only4, tablesOff := both(firewall.IPTables), both(firewall.NFTables)
		only4.V6, tablesOff.Masquerade, tablesOff.Forward = firewall.Family{}, false, false
		only6 := both(firewall.NFTables)
		only6.V4 = firewall.Family{}
		steps := []struct {
			config firewall.Config
			want   string
		}{
			{both(firewall.IPTables), nft},
			{both(firewall.NFTables), "flannel-ipv4 flannel-ipv6"},
			{masqOff, "iptables-nft:FWD ip6tables-nft:FWD"},
			{forwardOff, "iptables-nft:POSTRTG ip6tables-nft:POSTRTG"},
			{only4, "iptables-nft:POSTRTG iptables-nft:FWD"},
			{only6, "flannel-ipv6"},
			{off, ""},
			{both(firewall.NFTables), "flannel-ipv4 flannel-ipv6"},
			{tablesOff, ""},
		}
		one := open(t, 0)
		defer one.Close()
		for _, restart := range []bool{false, true} {
			for i, step := range steps {
				f := one
				if restart {
					f = open(t, 0)
				}
				apply(t, f, step.config)
				if got := places(t); got != step.want {
					t.Errorf("step %d, restart %v: rules are at %q, want %q", i, restart, got, step.want)
				}
				if n := apply(t, f, step.config); n != 0 {
					t.Errorf("step %d, restart %v: a second Apply changed %d chains", i, restart, n)
				}
				if restart {
					f.Close()
				}
			}
			if diff := cmp.Diff(before, everything(t)); diff != "" {
				t.Errorf("not as before (-before +after):\n%s", diff)
			}
		}
	})
}

func TestHostMovesToLegacy(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, step := range []struct{ setup, want string }{
			{"true", "iptables-nft:POSTRTG iptables-nft:FWD ip6tables-nft:POSTRTG ip6tables-nft:FWD"},
			{"ip6tables-legacy -t mangle -N KUBE-IPTABLES-HINT",
				"iptables-legacy:POSTRTG iptables-legacy:FWD ip6tables-legacy:POSTRTG ip6tables-legacy:FWD"},
			{"iptables-nft -t mangle -N KUBE-KUBELET-CANARY",
				"iptables-nft:POSTRTG iptables-nft:FWD ip6tables-nft:POSTRTG ip6tables-nft:FWD"},
		} {
			sh(t, step.setup)
			f := open(t, 0)
			apply(t, f, both(firewall.IPTables))
			if got := places(t); got != step.want {
				t.Errorf("after %s: rules are at %q, want %q", step.setup, got, step.want)
			}
			f.Close()
		}
	})
}

// If kubelet starts after flanneld, and uses the other variant, the rules move there.
func TestKubeletStartsLater(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		for _, step := range []struct{ setup, want string }{
			{"true", "iptables-nft:POSTRTG iptables-nft:FWD ip6tables-nft:POSTRTG ip6tables-nft:FWD"},
			{"iptables-legacy -t mangle -N KUBE-KUBELET-CANARY",
				"iptables-legacy:POSTRTG iptables-legacy:FWD ip6tables-legacy:POSTRTG ip6tables-legacy:FWD"},
			{"iptables-nft -t mangle -N KUBE-KUBELET-CANARY", // kubelet does not change its variant without a restart of the host
				"iptables-legacy:POSTRTG iptables-legacy:FWD ip6tables-legacy:POSTRTG ip6tables-legacy:FWD"},
		} {
			sh(t, step.setup)
			apply(t, f, both(firewall.IPTables))
			if got := places(t); got != step.want {
				t.Errorf("after %s: rules are at %q, want %q", step.setup, got, step.want)
			}
		}
	})
}

// A mark in the variant that is used already decides, too: nothing looks for another one.
func TestKubeletMarksTheSameVariant(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const nft = "iptables-nft:POSTRTG iptables-nft:FWD ip6tables-nft:POSTRTG ip6tables-nft:FWD"
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		for _, setup := range []string{"iptables-nft -t mangle -N KUBE-KUBELET-CANARY",
			"iptables-nft -t mangle -X KUBE-KUBELET-CANARY; iptables-legacy -t mangle -N KUBE-KUBELET-CANARY"} {
			sh(t, setup)
			apply(t, f, both(firewall.IPTables))
			if got := places(t); got != nft {
				t.Errorf("after %s: rules are at %q, want %q", setup, got, nft)
			}
		}
	})
}

func TestCleanup(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, foreign)
		before := everything(t)
		cleanup := func(dry bool) []string {
			t.Helper()
			removed, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, dry)
			if err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
			return removed
		}
		if r := cleanup(false); len(r) > 0 {
			t.Errorf("removed something where there is nothing of ours: %q", r)
		}
		f := open(t, 0)
		defer f.Close()
		apply(t, f, both(firewall.IPTables))
		nft := sh(t, "iptables-nft-save") // the same once more by hand, so that every place holds something
		sh(t, "iptables-legacy-restore --noflush <<'E'\n"+onlyOurs(nft)+"E\nnft add table ip flannel-ipv4; nft add table ip6 flannel-ipv6; iptables-nft -A DOCKER-USER -i lo -j FLANNEL-FWD")
		full := everything(t)
		found := cleanup(true)
		t.Logf("would remove:\n%s", strings.Join(found, "\n"))
		if diff := cmp.Diff(full, everything(t)); diff != "" {
			t.Errorf("the dry run changed something:\n%s", diff)
		}
		if len(found) != 4+4+4+1+2 { // a jump and a chain twice in three iptables places, the jump by hand, two tables
			t.Errorf("found %d things, want 15", len(found))
		}
		if diff := cmp.Diff(found, cleanup(false)); diff != "" {
			t.Errorf("removed something else than the dry run said:\n%s", diff)
		}
		if diff := cmp.Diff(before, everything(t)); diff != "" {
			t.Errorf("not as before (-before +after):\n%s", diff)
		}
	})
}

// onlyOurs are the lines of iptables-save that are about our chains.
func onlyOurs(save string) string {
	var b strings.Builder
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, "*") || strings.Contains(line, "FLANNEL-") || line == "COMMIT\n" {
			b.WriteString(line)
		}
	}
	return b.String()
}
