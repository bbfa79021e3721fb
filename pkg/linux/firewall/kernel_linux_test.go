package firewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/pkg/firewall"
)

// sh runs a script in the test's namespaces and returns what it printed.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

var (
	v4 = firewall.Family{Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.34.0/24")}
	v6 = firewall.Family{Network: netip.MustParsePrefix("2001:cafe:42::/56"), Subnet: netip.MustParsePrefix("2001:cafe:42:1::/64")}
)

func both(w firewall.Writer) firewall.Config {
	return firewall.Config{Writer: w, V4: v4, V6: v6, Masquerade: true, Forward: true, RandomFully: true}
}

var quiet = slog.New(slog.DiscardHandler)

type logs struct{ t *testing.T }

func (l logs) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func open(t *testing.T, resync time.Duration) *Firewall {
	t.Helper()
	f, err := New(firewall.Options{Log: slog.New(slog.NewTextHandler(logs{t}, nil)), Resync: resync})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func apply(t *testing.T, f *Firewall, c firewall.Config) int {
	t.Helper()
	n, err := f.Apply(t.Context(), c)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	return n
}

// serve applies c whenever the firewall asks for it, as the daemon does, until stop is called.
func serve(t *testing.T, f *Firewall, c firewall.Config) (stop func()) {
	t.Helper()
	apply(t, f, c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-f.Changes():
				_, err := f.Apply(ctx, c)
				for errors.Is(err, errChanging) || errors.Is(err, unix.EINTR) { // others write all the time: the daemon tries again, too
					time.Sleep(10 * time.Millisecond) // less than the daemon
					_, err = f.Apply(ctx, c)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("Apply: %v", err)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
		if err := f.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// rules returns what of ours is in the kernel, by other means than the code under test uses: of each table our chains, and
// the jumps to them.
func rules(t *testing.T, variant string) string {
	t.Helper()
	var b strings.Builder
	for _, command := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		table, ours := "", ""
		for line := range strings.Lines(sh(t, command+"-save")) {
			switch {
			case strings.HasPrefix(line, "*"):
				table, ours = line[1:len(line)-1], ""
			case strings.Contains(line, "FLANNEL-"):
				ours += chainCounters.ReplaceAllString(line, "")
			case line == "COMMIT\n" && ours != "":
				fmt.Fprintf(&b, "%s -t %s {\n%s}\n", command, table, ours)
			}
		}
	}
	return b.String()
}

var chainCounters = regexp.MustCompile(` \[\d+:\d+\]`)

var counters = regexp.MustCompile(`packets \d+ bytes \d+`)

// place under test: how a person sees it.
type seen struct {
	name   string
	writer firewall.Writer
	setup  string
	show   func(t *testing.T) string
}

func iptablesSeen(variant, setup string) seen {
	return seen{"iptables-" + variant, firewall.IPTables, setup, func(t *testing.T) string {
		return rules(t, variant)
	}}
}

var (
	seenNFT    = iptablesSeen("nft", "")
	seenLegacy = iptablesSeen("legacy", "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY")
	seenTables = seen{"nftables", firewall.NFTables, "", func(t *testing.T) string {
		out := sh(t, "nft list table ip flannel-ipv4 2>&1 || true; nft list table ip6 flannel-ipv6 2>&1 || true")
		return counters.ReplaceAllString(out, "")
	}}
)

// patience is how long a test waits for what takes less than a second: a machine may be busy.
const patience = 5 * time.Minute

// drift does each damage and waits until the rules are as they were.
func drift(t *testing.T, s seen, resync time.Duration, damages []string) {
	t.Helper()
	sh(t, s.setup)
	stop := serve(t, open(t, resync), both(s.writer))
	defer stop()
	want := s.show(t)
	if !strings.Contains(want, "10.5.34.0/24") || !strings.Contains(want, "2001:cafe:42:1::/64") {
		t.Fatalf("rules are not there:\n%s", want)
	}
	for _, damage := range damages {
		settled(t, s, want)
		sh(t, damage)
		took := eventually.Nil(t, damage, func() error {
			if got := s.show(t); got != want {
				return fmt.Errorf("not mended:\n%s", cmp.Diff(want, got))
			}
			return nil
		})
		t.Logf("%-12s %-80s mended in %v", s.name, damage, took.Round(time.Millisecond))
	}
}

// settled waits until the answer to the damage before is over: one notification is told 200 ms after the last.
func settled(t *testing.T, s seen, want string) {
	t.Helper()
	time.Sleep(2 * minInterval) // in which the rules must stay
	if got := s.show(t); got != want {
		t.Fatalf("the rules changed again:\n%s", cmp.Diff(want, got))
	}
}

func iptablesDamages(suffix string) []string {
	var all []string
	for _, d := range []string{
		"iptables -t nat -D POSTROUTING 1",
		"iptables -t nat -F FLANNEL-POSTRTG",
		"iptables -t nat -I FLANNEL-POSTRTG -s 10.9.0.0/16 -j RETURN",
		"iptables -t nat -D FLANNEL-POSTRTG 2",
		"iptables -t nat -R FLANNEL-POSTRTG 5 -s 10.5.0.0/16 -j MASQUERADE",
		"iptables -t nat -R POSTROUTING 1 -p tcp -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
		"iptables -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
		"iptables -F FORWARD",
		"iptables -F; iptables -X || true", // the jump may be there again by then
		"iptables -t nat -F; iptables -t nat -X || true",
		"ip6tables -t nat -F POSTROUTING",
		"ip6tables -F FLANNEL-FWD",
	} {
		d = strings.ReplaceAll(d, "iptables ", "iptables"+suffix+" ")
		all = append(all, strings.ReplaceAll(d, "ip6tables ", "ip6tables"+suffix+" "))
	}
	return all
}

// wrapPrograms puts a script before every program that the firewall starts, which notes the start in a file; count
// returns how many there were since it was last called.
func wrapPrograms(t *testing.T) (count func() int) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for _, glob := range []string{"/usr/sbin/iptables*", "/usr/sbin/ip6tables*", "/usr/sbin/nft", "/usr/sbin/xtables*"} {
		programs, _ := filepath.Glob(glob)
		for _, p := range programs {
			script := "#!/bin/sh\necho \"$0 $*\" >>" + log + "\nexec " + p + " \"$@\"\n"
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(p)), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		out, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if len(out) > 0 {
			t.Logf("programs started:\n%s", out)
		}
		os.Remove(log)
		return strings.Count(string(out), "\n")
	}
}
