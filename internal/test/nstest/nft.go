//go:build linux

package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"flannel/internal/test/eventually"
)

// CheckSavedRules checks that the rules of the network namespace can be listed, and that
// what is saved by `nft list ruleset` can be loaded and is the same then, with each of
// two versions of nft: that of this machine, and that of the image, which the program
// inImage runs. Each loads what the other one has saved, too.
func CheckSavedRules(t *testing.T, inImage string) {
	t.Helper()
	versions := map[string][]string{"nft of this machine": {"nft"}, "nft of the image": {inImage, "nft"}}
	for name, nft := range versions {
		run := func(args ...string) string {
			t.Helper()
			command := append(append([]string{}, nft...), args...)
			out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
			if err != nil {
				t.Errorf("%s %q: %v: %s", name, args, err, out)
			}
			return string(out)
		}
		run("-j", "list", "ruleset")
		run("-n", "-j", "list", "ruleset")
		saved := filepath.Join(t.TempDir(), "saved")
		if err := os.WriteFile(saved, []byte(run("-s", "list", "ruleset")), 0o600); err != nil {
			t.Fatal(err)
		}
		for other, nft := range versions {
			load := append([]string{"--net", "sh", "-c", `"$@" -f "$0" && "$@" -s list ruleset`, saved}, nft...)
			out, err := exec.CommandContext(t.Context(), "unshare", load...).CombinedOutput()
			if err != nil {
				t.Errorf("%s cannot load what %s has saved: %v: %s", other, name, err, out)
			}
			if was, err := os.ReadFile(saved); other == name && (err != nil || string(was) != string(out)) {
				t.Errorf("%s has saved other rules than it has loaded from that: %v\n%s\nwere\n%s", name, err, out, was)
			}
		}
	}
}

// OwnTable makes a table of nftables that nobody else can change: another program owns it, an nft that waits for commands.
// content is in nft's language, on one line. There must be no such table. release ends nft, with which the table is gone.
func OwnTable(t *testing.T, family, name, content string) (release func()) {
	t.Helper()
	owner := exec.CommandContext(t.Context(), "nft", "-i")
	owner.Stderr = t.Output()
	commands, err := owner.StdinPipe()
	if err == nil {
		err = owner.Start()
	}
	if err == nil {
		_, err = fmt.Fprintf(commands, "table %s %s { flags owner; %s }\n", family, name, content)
	}
	if err != nil {
		t.Fatalf("start nft: %v", err)
	}
	eventually.Nil(t, "nft has made its table", func() error {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "table", family, name).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return func() {
		t.Helper()
		if err := errors.Join(commands.Close(), owner.Wait()); err != nil {
			t.Errorf("end nft: %v", err)
		}
	}
}
