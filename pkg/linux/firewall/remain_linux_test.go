package firewall

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

// The image without iptables cannot remove the rules of the one that has it, and says so: cleanup fails, and a switch is
// logged.
func TestIPTablesRemain(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		withTools, bare := os.Getenv("PATH"), filepath.Join(t.TempDir(), "bin")
		f := open(t, 0)
		apply(t, f, both(firewall.IPTables))
		f.Close()
		t.Setenv("PATH", bare)
		var log logtest.Log
		f, err := New(firewall.Options{Log: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		apply(t, f, both(firewall.NFTables))
		f.Close()
		if log.Count("level=WARN", "cause=iptables-rules-remain") != 1 {
			t.Error("the switch says nothing of the rules of iptables")
		}
		for _, dry := range []bool{true, false} {
			removed, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, dry)
			remain, ok := errors.AsType[*remainError](err)
			if !ok || len(remain.Chains) != 4 || !slices.Equal(remain.Missing, []string{"iptables-nft"}) || len(removed) == 0 {
				t.Errorf("cleanup removes %q: %v", removed, err)
			}
		}
		t.Setenv("PATH", withTools)
		if _, err := exec.LookPath("iptables"); err != nil {
			t.Fatal(err)
		}
		if removed, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil || len(removed) == 0 {
			t.Errorf("with iptables, cleanup removes %q: %v", removed, err)
		}
		t.Setenv("PATH", bare)
		if removed, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false); err != nil || len(removed) > 0 {
			t.Errorf("after that, cleanup removes %q: %v", removed, err)
		}
	})
}

// A host that has iptables, but not the variant with former rules of ours, hears which program is missing.
func TestLegacyRemains(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, "iptables-legacy -t nat -N FLANNEL-POSTRTG; ip6tables-legacy -N FLANNEL-FWD")
		bin := t.TempDir()
		for _, command := range []string{"iptables", "ip6tables"} {
			for _, suffix := range []string{"", "-restore", "-save"} {
				program, err := exec.LookPath(command + "-nft" + suffix)
				if err == nil {
					err = os.Symlink(program, filepath.Join(bin, command+"-nft"+suffix))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Setenv("PATH", bin)
		var log logtest.Log
		f, err := New(firewall.Options{Log: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		apply(t, f, both(firewall.IPTables))
		f.Close()
		want := []string{"iptables (legacy): nat FLANNEL-POSTRTG", "ip6tables (legacy): filter FLANNEL-FWD"}
		if log.Count("level=WARN", "cause=iptables-rules-remain", "missing=[iptables-legacy]") != 1 {
			t.Error("the log does not name the program")
		}
		removed, err := Cleanup(t.Context(), firewall.Options{Log: quiet}, false)
		remain, ok := errors.AsType[*remainError](err)
		if !ok || !slices.Equal(remain.Chains, want) || !slices.Equal(remain.Missing, []string{"iptables-legacy"}) || !logtest.Names(remain.Error(), "iptables-legacy") {
			t.Errorf("cleanup: %v", err)
		}
		if len(removed) == 0 || slices.ContainsFunc(removed, func(line string) bool { return strings.Contains(line, "legacy") }) {
			t.Errorf("cleanup removes %q", removed)
		}
	})
}
