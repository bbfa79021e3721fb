package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"flannel/pkg/daemon"
	"flannel/pkg/file"
	"flannel/pkg/status"
)

func TestNodeCommand(t *testing.T) {
	o := options{Command: "cleanup", Settings: daemon.Settings{SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}}
	did, failure := []string{}, error(nil)
	says := func(args ...string) (code int, out string) {
		var stdout, stderr strings.Builder
		o.Args = args
		code = execute(t.Context(), []command{{name: o.Command, help: "clean", flags: nodeCommand{
			did: "removed ", would: "would remove ", nothing: "nothing is there",
			do:       func(context.Context, bool) ([]string, error) { return did, failure },
			document: func(dryRun bool, done []string, problem string) any { return cleanupAnswer{dryRun, done, problem} },
		}.flags}}, &call{options: o, process: process{stdout: &stdout, stderr: &stderr}, log: slog.New(slog.DiscardHandler)})
		return code, stdout.String()
	}
	broken := errors.New("broken")
	for _, c := range []struct {
		args []string
		did  []string
		err  error
		code int
		out  string
	}{
		{nil, nil, nil, exitOK, "nothing is there\n"},
		{nil, nil, broken, exitError, ""}, // who could not look does not say that nothing is there
		{nil, []string{"a", "b"}, broken, exitError, "removed a\nremoved b\n"},
		{[]string{"--dry-run"}, []string{"a", "b"}, nil, exitOK, "would remove a\nwould remove b\n"},
	} {
		did, failure = c.did, c.err
		if code, out := says(c.args...); code != c.code || out != c.out {
			t.Errorf("%q with %q, %v: it ends with %d and says %q; want %d, %q", c.args, c.did, c.err, code, out, c.code, c.out)
		}
	}

	did, failure = nil, nil
	release, err := file.Hold(context.Background(), status.Lock(o.SubnetFile), "the daemon", func(*file.HeldError) {})
	if err != nil {
		t.Fatal(err)
	}
	defer release() //nolint:errcheck // the test ends
	if code, out := says("--json"); code != exitHeld || read[cleanupAnswer](t, out).Problem == "" {
		t.Errorf("beside the daemon it ends with %d and says %s", code, out)
	}
	if code, _ := says("--dry-run"); code != exitOK {
		t.Errorf("beside the daemon a dry run ends with %d", code)
	}
}
