package firewall

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/pkg/nstest"
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
	return strings.Join(strings.Fields(sh(t, `for p in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
			for c in POSTRTG FWD; do if $p-save 2>/dev/null | grep -q FLANNEL-$c; then echo $p:$c; fi; done
		done
		nft list tables | grep -o -e "ip flannel-ipv4$" -e "ip6 flannel-ipv6$" | cut -d' ' -f2`)), " ")
}

func TestSwitching(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const nft = "iptables-nft:POSTRTG iptables-nft:FWD ip6tables-nft:POSTRTG ip6tables-nft:FWD"
		sh(t, foreign)
		before := everything(t)
		masqOff, forwardOff, off := both(IPTables), both(IPTables), both(IPTables)
		masqOff.Masquerade, forwardOff.Forward, off.Masquerade, off.Forward = false, false, false, false
		only4, tablesOff := both(IPTables), both(NFTables)
		only4.V6, tablesOff.Masquerade, tablesOff.Forward = Family{}, false, false
		only6 := both(NFTables)
		only6.V4 = Family{}
		steps := []struct {
			config Config
			want   string
		}{
			{both(IPTables), nft},
			{both(NFTables), "flannel-ipv4 flannel-ipv6"},
			{masqOff, "iptables-nft:FWD ip6tables-nft:FWD"},
			{forwardOff, "iptables-nft:POSTRTG ip6tables-nft:POSTRTG"},
			{only4, "iptables-nft:POSTRTG iptables-nft:FWD"},
			{only6, "flannel-ipv6"},
			{off, ""},
			{both(NFTables), "flannel-ipv4 flannel-ipv6"},
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
			apply(t, f, both(IPTables))
			if got := places(t); got != step.want {
				t.Errorf("after %s: rules are at %q, want %q", step.setup, got, step.want)
			}
			f.Close()
		}
	})
}

func TestCleanup(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, foreign)
		before := everything(t)
		cleanup := func(dry bool) []string {
			t.Helper()
			removed, err := Cleanup(t.Context(), quiet, dry)
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
		apply(t, f, both(IPTables))
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

func TestRestartWritesNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, s := range []seen{seenNFT, seenTables, seenLegacy} {
			sh(t, s.setup)
			f := open(t, 0)
			if n := apply(t, f, both(s.writer)); n == 0 {
				t.Errorf("%s: nothing written at first", s.name)
			}
			f.Close()
			sh(t, "ping -c 1 -W 1 127.0.0.1")
			state := func() string {
				// With handles and packet counts: a rule that is written again would show.
				return stamp.ReplaceAllString(sh(t, "iptables-legacy-save -c; ip6tables-legacy-save -c; nft -a list ruleset 2>/dev/null"), "")
			}
			before := state()
			if !strings.Contains(before, "FLANNEL-POSTRTG") && !strings.Contains(before, "flannel-ipv4") {
				t.Fatalf("no rules:\n%s", before)
			}
			f = open(t, 0)
			start := time.Now()
			if n := apply(t, f, both(s.writer)); n != 0 {
				t.Errorf("%s: a restart changed %d chains", s.name, n)
			}
			t.Logf("%s: first Apply of a restart took %v", s.name, time.Since(start).Round(100*time.Microsecond))
			f.Close()
			if diff := cmp.Diff(before, state()); diff != "" {
				t.Errorf("%s: a restart changed something:\n%s", s.name, diff)
			}
		}
	})
}

// The issue allows one program in a resync; ours starts none, whatever traffic and other programs do.
func TestSteadyStateStartsNoProgram(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		off := both(IPTables)
		off.Masquerade, off.Forward = false, false
		for _, c := range []struct {
			name, setup, meanwhile string
			config                 Config
		}{
			{"iptables-nft", "iptables-nft -N KUBE", "iptables-nft -A KUBE -j RETURN; ping -c 1 127.0.0.1", both(IPTables)},
			{"nftables", "true", "iptables-nft -t nat -I POSTROUTING -j KUBE-MARK || iptables-nft -F FORWARD", both(NFTables)},
			{"nothing wanted", "true", "iptables-nft -F FORWARD", off},
			{"legacy", "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", "ping -c 1 127.0.0.1; iptables-legacy-save -c | grep [1-9]:", both(IPTables)},
		} {
			sh(t, c.setup)
			func() {
				const resync = 250 * time.Millisecond
				f := open(t, resync)
				defer serve(t, f, c.config)()
				time.Sleep(2*resync + 300*time.Millisecond) // what was written is read once
				path := os.Getenv("PATH")
				count := wrapPrograms(t)
				for range 4 {
					cmd := exec.Command("sh", "-c", c.meanwhile)
					cmd.Env = append(os.Environ(), "PATH="+path)
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("%s: %s: %v\n%s", c.name, c.meanwhile, err, out)
					}
					time.Sleep(resync)
				}
				if n := count(); n > 0 {
					t.Errorf("%s: %d programs started", c.name, n)
				}
				t.Setenv("PATH", path)
			}()
		}
	})
}

// A change of any kind to a big legacy table is seen without reading it through iptables-save.
func TestLegacyDigest(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, c := range []struct{ command, address, loopback string }{
			{"iptables", "10.%d.%d.1/32", "127.0.0.1"}, {"ip6tables", "fd00:%x:%x::1/128", "::1"}} {
			var rules strings.Builder
			rules.WriteString("*filter\n:KUBE - [0:0]\n-A INPUT -m limit --limit 9/sec -j KUBE\n")
			for i := range 20000 {
				fmt.Fprintf(&rules, "-A KUBE -s "+c.address+" -p tcp -m tcp --dport 443 -j RETURN\n", i/256, i%256)
			}
			rules.WriteString("COMMIT\n")
			file := filepath.Join(t.TempDir(), "rules")
			if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			sh(t, c.command+"-legacy-restore <"+file+"; "+c.command+"-legacy -t nat -N FLANNEL-POSTRTG")
			p := &iptablesPlace{command: c.command, suffix: "-legacy", variant: variantLegacy, log: quiet}
			before := p.digest()
			sh(t, "ping -c 2 -i 0.1 "+c.loopback)
			start := time.Now()
			after := p.digest()
			t.Logf("%s: digest of 20,000 rules in %v", c.command, time.Since(start).Round(100*time.Microsecond))
			if before == 0 || before != after {
				t.Errorf("%s: digest %d, after traffic %d, want the same", c.command, before, after)
			}
			for _, change := range []string{"-A KUBE -j DROP", "-R KUBE 777 -p tcp -m tcp --dport 444 -j RETURN", "-t nat -A FLANNEL-POSTRTG -j RETURN", "-P FORWARD DROP"} {
				before := p.digest()
				sh(t, c.command+"-legacy "+change)
				if p.digest() == before {
					t.Errorf("%s: %s was not seen", c.command, change)
				}
			}
		}
	})
}

func TestApplyIsCheapWhenInStep(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, time.Hour)
		defer f.Close()
		apply(t, f, both(IPTables))
		time.Sleep(2 * interval)
		apply(t, f, both(IPTables))
		count := wrapPrograms(t)
		start := time.Now()
		for range 1000 {
			apply(t, f, both(IPTables))
		}
		t.Logf("1000 Applies in %v", time.Since(start))
		if n := count(); n > 0 {
			t.Errorf("%d programs started", n)
		}
	})
}

// A program that insists on being first is not fought with for long.
func TestFight(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var log bytes.Buffer
		f, err := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Resync: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		stop := serve(t, f, both(IPTables))
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		rounds := 0
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			if sh(t, "iptables-nft -t nat -S POSTROUTING | sed -n 2p | grep -c FLANNEL || true") == "1\n" {
				sh(t, "iptables-nft -t nat -D POSTROUTING -s 10.6.0.0/16 -j MASQUERADE || true; iptables-nft -t nat -I POSTROUTING -s 10.6.0.0/16 -j MASQUERADE")
				rounds++
			}
		}
		stop()
		warned := strings.Count(log.String(), "again and again")
		t.Logf("mended %d times in 9 s, %d warnings", rounds, warned)
		if rounds < burst/2 || rounds > burst+12 || warned != 1 {
			t.Errorf("mended %d times with %d warnings, want some %d times and one warning:\n%s", rounds, warned, burst, log.String())
		}
	})
}

// Sampled as fast as it goes, no moment of any restart shows the rules incomplete.
func TestRestartsLeaveNoGap(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, s := range []seen{seenNFT, seenTables, seenLegacy} {
			sh(t, s.setup)
			f := open(t, 0)
			apply(t, f, both(s.writer))
			f.Close()
			want := s.show(t)
			done := make(chan error)
			go func() {
				other := both(s.writer) // of a longer subnet, so that half the restarts do write
				other.V4.Subnet = v4.Subnet
				for i := range 50 {
					c := other
					c.RandomFully = i%2 == 0
					f := open(t, 0)
					_, err := f.Apply(context.Background(), c)
					f.Close()
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			plain := strings.NewReplacer(" --random-fully", "", " fully-random", "")
			samples := 0
			for {
				if got := s.show(t); plain.Replace(got) != plain.Replace(want) {
					t.Fatalf("%s: sample %d shows other rules:\n%s", s.name, samples, cmp.Diff(want, got))
				}
				samples++
				select {
				case err := <-done:
					if err != nil {
						t.Error(fmt.Errorf("%s: %w", s.name, err))
					}
					t.Logf("%s: %d samples during 50 restarts", s.name, samples)
				default:
					continue
				}
				break
			}
		}
	})
}
