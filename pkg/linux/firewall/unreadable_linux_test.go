package firewall

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// unreadable is a rule of another program that iptables-save of a variant cannot print. hide makes it unreadable, where
// the rule itself is one of iptables.
var unreadable = map[string]struct {
	hide func(t *testing.T)
	add  string // $family: ip or ip6; $table, $chain
}{
	"nft": {func(*testing.T) {}, `$iptables -t $table -A $chain; nft add rule $family $table $chain meta mark set meta mark '&' 0xff00ffff '|' 0x00040000`},
	// An extension of the kernel that the administrator's iptables has and ours has not.
	"legacy": {func(t *testing.T) { withoutExtensions(t, "recent") }, `$iptables -t $table -A $chain -m recent --name vpn --rcheck`},
}

// withoutExtensions makes iptables find all its extensions but these.
func withoutExtensions(t *testing.T, names ...string) {
	t.Helper()
	libraries, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no extensions of iptables found: %v", err)
	}
	dir := t.TempDir()
	for _, library := range libraries {
		_, extension, _ := strings.Cut(strings.TrimSuffix(filepath.Base(library), ".so"), "_")
		if slices.Contains(names, extension) {
			continue
		}
		if err := os.Symlink(library, filepath.Join(dir, filepath.Base(library))); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XTABLES_LIBDIR", dir)
}

// A rule that iptables-save cannot print, in whatever chain it stands, keeps none of our rules from being written,
// repaired and removed, and it stays.
func TestForeignRuleThatIPTablesCannotPrint(t *testing.T) {
	for variant, s := range variants {
		for _, place := range []string{"filter vpn", "nat vpn", "filter FORWARD", "nat POSTROUTING"} {
			t.Run(variant+" "+place, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) { besideUnreadable(t, variant, s, place) })
			})
		}
	}
}

const masq = `-m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`

func besideUnreadable(t *testing.T, variant string, s seen, place string) {
	sh(t, s.setup)
	table, chain, _ := strings.Cut(place, " ")
	terms := func(f family) *strings.Replacer {
		name := map[bool]string{true: "ip", false: "ip6"}[strings.HasPrefix(f.command, "iptables")]
		return strings.NewReplacer("$family", name, "$iptables", f.command, "$table", table, "$chain", chain)
	}
	for _, f := range families(variant) {
		sh(t, f.command+" -t "+table+" -N vpn; "+f.command+" -A FORWARD -i a -j ACCEPT; "+terms(f).Replace(unreadable[variant].add))
		sh(t, f.command+" -A FORWARD -j REJECT")
	}
	unreadable[variant].hide(t)
	for _, f := range families(variant) {
		sh(t, "! "+f.command+"-save 2>&1")
	}
	before := kernelRules(t, variant)
	stop := serve(t, open(t, 300*time.Millisecond), both(firewall.IPTables)) // fails unless the rules are written at once
	want := kernelRules(t, variant)
	for _, f := range families(variant) {
		forward := withPrefix(want, f.command+" filter FORWARD")
		if n := len(forward); n < 3 || !strings.Contains(forward[n-2], "-j FLANNEL-FWD") || !strings.HasSuffix(forward[n-1], "blocks") {
			t.Errorf("our jump does not stand right before the last rule of FORWARD:\n%s", strings.Join(forward, "\n"))
		}
		deletions := []string{"$iptables -D FORWARD " + ourJump, "$iptables -t nat -D POSTROUTING " + masq}
		if variant == "nft" { // iptables cannot delete a rule behind one that it cannot read
			const handle = "nft delete rule $family $place handle $(nft -a list chain $family $place | sed -n 's/.*FLANNEL.*handle //p')"
			deletions = []string{strings.ReplaceAll(handle, "$place", "filter FORWARD"), strings.ReplaceAll(handle, "$place", "nat POSTROUTING")}
		}
		damages := append(deletions, "$iptables -F FLANNEL-FWD", "$iptables -t nat -A FLANNEL-POSTRTG -j RETURN", "$iptables -t nat -A POSTROUTING "+masq)
		if variant == "nft" || chain != "POSTROUTING" { // else the arguments of the jump cannot be read, and the jump stays
			damages = append(damages, "$iptables -t nat -A POSTROUTING -p tcp -j FLANNEL-POSTRTG")
		}
		for _, damage := range damages {
			damage = terms(f).Replace(damage)
			sh(t, damage)
			eventually.Nil(t, damage, func() error {
				if got := kernelRules(t, variant); !slices.Equal(got, want) {
					return fmt.Errorf("not repaired (-want +got):\n%s", cmp.Diff(want, got))
				}
				return nil
			})
		}
	}
	stop()
	f := open(t, 0)
	defer f.Close()
	if n := apply(t, f, both(firewall.IPTables)); n != 0 {
		t.Errorf("a restart wrote %d chains", n)
	}
	if _, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, kernelRules(t, variant)); diff != "" {
		t.Errorf("after the cleanup (-before +after):\n%s", diff)
	}
}

// A jump with our comment that holds for some packets only does not count as ours, also where iptables cannot print it.
func TestConditionalJumpWithOurComment(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, variants["nft"].setup)
		f := open(t, 0)
		apply(t, f, both(firewall.IPTables))
		want := kernelRules(t, "nft")
		f.Close()
		for _, f := range families("nft") {
			name := map[bool]string{true: "ip", false: "ip6"}[strings.HasPrefix(f.command, "iptables")]
			sh(t, f.command+" -D FORWARD "+ourJump+"; "+f.command+" -A FORWARD -p tcp "+ourJump+"; "+f.command+" -A FORWARD")
			sh(t, "nft add rule "+name+" filter FORWARD meta mark set meta mark '&' 0xff00ffff '|' 0x00040000; ! "+f.command+" -S FORWARD 2>&1")
		}
		again := open(t, 0)
		defer again.Close()
		apply(t, again, both(firewall.IPTables))
		missing := slices.DeleteFunc(want, func(line string) bool { return slices.Contains(kernelRules(t, "nft"), line) })
		if len(missing) > 0 {
			t.Errorf("missing:\n%s", strings.Join(missing, "\n"))
		}
	})
}

func withPrefix(lines []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, prefix) })
}

// kernelRules lists the rules of filter and nat, both families, one line each.
func kernelRules(t *testing.T, suffix string) (lines []string) {
	t.Helper()
	for _, command := range []string{"iptables", "ip6tables"} {
		p := newIPTablesPlace("", command, "-"+suffix, kinds[suffix], "filter")
		for _, table := range []string{"filter", "nat"} {
			rules, err := p.chainRules(table, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rules {
				line := fmt.Sprintf("%s-%s %s %s %s", command, suffix, table, r.chain, r.exprs)
				if r.jump != "" {
					line += " " + r.text
				}
				if r.blocks && !r.conditional {
					line += " blocks"
				}
				lines = append(lines, line)
			}
		}
	}
	return lines
}

var kinds = map[string]variant{"nft": variantNFT, "legacy": variantLegacy}

// What is read from the kernel of each rule, without iptables.
func TestRulesOfTheKernel(t *testing.T) {
	for variant := range variants {
		t.Run(variant, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				for _, f := range families(variant) {
					sh(t, f.command+" -N X")
					p := newIPTablesPlace("", strings.TrimSuffix(f.command, "-"+variant), "-"+variant, kinds[variant], "filter")
					type facts struct {
						Jump, Text          string
						Conditional, Blocks bool
					}
					for args, want := range map[string]facts{
						`-j X`:                                 {Jump: "X", Text: "-j X"},
						`-g X`:                                 {Jump: "X", Text: "-g X"},
						`-m comment --comment "a \"b\"" -j X`:  {Jump: "X", Text: `-m comment --comment "a \"b\"" -j X`},
						`-p tcp -j X`:                          {Jump: "X", Conditional: true},
						`-i eth0 -g X`:                         {Jump: "X", Conditional: true},
						`-m conntrack --ctstate NEW -j X`:      {Jump: "X", Conditional: true},
						`-s ` + f.pod + ` -j X`:                {Jump: "X", Conditional: true},
						`! -d ` + f.pod + ` -j DROP`:           {Conditional: true, Blocks: true},
						`-o eth0 -j REJECT`:                    {Conditional: true, Blocks: true},
						`-j DROP`:                              {Blocks: true},
						`-j REJECT`:                            {Blocks: true},
						`-m comment --comment "-s x" -j DROP`:  {Blocks: true},
						`-m limit --limit 1/second -j DROP`:    {Conditional: true, Blocks: true},
						`-m mark --mark 0x4000/0x4000 -j DROP`: {Conditional: true, Blocks: true},
						`-j ACCEPT`:                            {},
						`-j RETURN`:                            {},
						`-m comment --comment "only counts"`:   {},
					} {
						sh(t, f.command+" -F FORWARD; "+f.command+" -A FORWARD -i before; "+f.command+" -A FORWARD "+args+"; "+f.command+" -A FORWARD -i after")
						rules, err := p.chainRules("filter", forwardChain)
						if err != nil || len(rules) != 3 {
							t.Fatalf("%s %s: %d rules, want 3: %v", f.command, args, len(rules), err)
						}
						r := rules[1]
						got := facts{r.jump, r.text, r.conditional, r.blocks}
						if r.conditional || r.jump == "" {
							got.Text = "" // has no meaning
						}
						if diff := cmp.Diff(want, got); diff != "" || r.chain != forwardChain {
							t.Errorf("%s %s in chain %s (-want +got):\n%s", f.command, args, r.chain, diff)
						}
					}
				}
			})
		})
	}
}

// An iptables that prints nothing because another program holds the lock, or because it is killed, says nothing about our
// rules: they are not written anew, even if that would succeed. One that crashes cannot print them: they are.
func TestPrintingIsInterrupted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, seenLegacy.setup)
		c := both(firewall.IPTables)
		c.V6, c.Forward = firewall.Family{}, false
		f := open(t, 0)
		apply(t, f, c)
		f.Close()
		path, dir := os.Getenv("PATH"), t.TempDir()
		const dies = "ulimit -c 0; case $* in *-S*) kill -%s $$;; esac; exec /usr/sbin/iptables-legacy \"$@\""
		for name, test := range map[string]struct {
			script  string
			crashes bool
		}{
			"locked":     {script: "exec flock /run/xtables.lock /usr/sbin/iptables-legacy \"$@\""}, // which waits for the lock itself, for 5 s
			"killed":     {script: fmt.Sprintf(dies, "KILL")},
			"terminated": {script: fmt.Sprintf(dies, "TERM")},
			"crashes":    {script: fmt.Sprintf(dies, "SEGV"), crashes: true},
		} {
			if err := os.WriteFile(filepath.Join(dir, "iptables-legacy"), []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+path)
			f := open(t, 0) // which has not read the rules yet
			if n, err := f.Apply(t.Context(), c); (n != 0) != test.crashes || (err == nil) != test.crashes {
				t.Fatalf("%s: changed %d chains, and the error: %v", name, n, err)
			}
			t.Setenv("PATH", path)
			if !test.crashes {
				<-f.Changes()
			}
			if n := apply(t, f, c); n != 0 {
				t.Errorf("%s: the next Apply changed %d chains", name, n)
			}
			f.Close()
		}
	})
}
