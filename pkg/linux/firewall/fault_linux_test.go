package firewall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// only makes PATH hold nothing but the given programs; a name can be given another program as "name=path".
func only(t *testing.T, programs ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, p := range programs {
		name, path, ok := strings.Cut(p, "=")
		if !ok {
			path = "/usr/sbin/" + name
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

func TestNoIPTablesInstalled(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := os.Getenv("PATH")
		only(t)
		f := open(t, time.Second)
		defer f.Close()
		if _, err := f.Apply(t.Context(), both(firewall.IPTables)); err == nil || !strings.Contains(err.Error(), "iptables") {
			t.Errorf("error %v, want one that names the package", err)
		}
		apply(t, f, both(firewall.NFTables)) // needs no program, not even nft
		t.Setenv("PATH", path)
		if got := places(t); got != "flannel-ipv4 flannel-ipv6" {
			t.Errorf("rules are at %q", got)
		}
		apply(t, f, both(firewall.IPTables)) // installed meanwhile
		if got := places(t); !strings.HasPrefix(got, "iptables-nft:POSTRTG iptables-nft:FWD") || strings.Contains(got, "flannel") {
			t.Errorf("rules are at %q", got)
		}
	})
}

// On a distribution with one variant the programs have no suffix.
func TestOneVariantInstalled(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := os.Getenv("PATH")
		for variant, want := range map[string]string{"nft": "iptables-nft:POSTRTG", "legacy": "iptables-legacy:POSTRTG"} {
			multi := "/usr/sbin/xtables-" + variant + "-multi"
			only(t, "iptables="+multi, "iptables-save="+multi, "iptables-restore="+multi, "ip6tables="+multi, "ip6tables-save="+multi, "ip6tables-restore="+multi)
			f := open(t, time.Second)
			apply(t, f, both(firewall.IPTables))
			f.Close()
			t.Setenv("PATH", path)
			if got := places(t); !strings.Contains(got, want) {
				t.Errorf("only %s installed: rules are at %q", variant, got)
			}
			if _, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRandomFullyRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		refuse := "#!/bin/sh\ninput=$(cat)\ncase $input in *random-fully*) echo 'unknown option \"--random-fully\"' >&2; exit 2;; esac\n" +
			"printf '%s\\n' \"$input\" | exec /usr/sbin/iptables-nft-restore \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, "iptables-nft-restore"), []byte(refuse), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		f := open(t, 0)
		defer f.Close()
		c := both(firewall.IPTables)
		apply(t, f, c)
		rules := sh(t, "iptables-nft-save; ip6tables-nft-save")
		if strings.Contains(rules, "random-fully") || strings.Count(rules, "-j MASQUERADE") != 4 {
			t.Errorf("want four masquerading rules without --random-fully:\n%s", rules)
		}
		if n := apply(t, f, c); n != 0 {
			t.Errorf("a second Apply changed %d chains", n)
		}
	})
}

// A failing write is tried again, but not in a hot loop, and the old rules stay until the new ones are there.
func TestRefusedWriteIsRetriedSlowly(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := open(t, time.Second)
		defer f.Close()
		apply(t, f, both(firewall.NFTables))
		path := os.Getenv("PATH")
		dir := t.TempDir()
		log := filepath.Join(dir, "log")
		refuse := "#!/bin/sh\necho once >>" + log + "\necho 'not today' >&2\nexit 1\n"
		for _, name := range []string{"iptables-nft-restore", "ip6tables-nft-restore"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(refuse), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir+":"+path)
		began := time.Now()
		for range 100 {
			if _, err := f.Apply(t.Context(), both(firewall.IPTables)); err == nil || !strings.Contains(err.Error(), "not today") {
				t.Fatalf("error %v, want what iptables said", err)
			}
		}
		// A try writes 3 times with all parts, and 3 times each without comments, without --random-fully and without both,
		// for two tables of two families; a slow machine has time for more.
		most := 48
		for pause, left := firstRetry, time.Since(began); left >= pause; pause *= 2 {
			left -= pause
			most += 48
		}
		out, err := os.ReadFile(log)
		if n := strings.Count(string(out), "once"); err != nil || n == 0 || n > most {
			t.Errorf("written %d times in 100 Applies, want %d at most (%v)", n, most, err)
		}
		t.Setenv("PATH", path)
		if got := places(t); got != "flannel-ipv4 flannel-ipv6" {
			t.Errorf("rules are at %q, want the old ones only", got)
		}
		start := time.Now()
		for {
			select {
			case <-f.Changes():
			case <-time.After(lastRetry + patience):
				t.Fatal("nobody asks for another try")
			}
			if _, err := f.Apply(t.Context(), both(firewall.IPTables)); err == nil {
				break
			}
		}
		t.Logf("written %v after the fault was gone", time.Since(start).Round(time.Millisecond))
		if got := places(t); !strings.HasPrefix(got, "iptables-nft:POSTRTG") || strings.Contains(got, "flannel") {
			t.Errorf("rules are at %q, want the new ones only", got)
		}
	})
}
