package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
	"flannel/pkg/cni/install"
)

func TestInstallCNI(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const conf = `{"name":"cbr0","plugins":[{"type":"flannel"}]}`
	write("conf", conf)
	write("plugin", "binary")
	var out bytes.Buffer
	run := func(ctx context.Context, args ...string) error {
		var problems strings.Builder
		p := process{stdout: &out, stderr: &problems}
		if code := runCommand(ctx, options{Command: "install-cni", Args: args}, p, slog.New(slog.DiscardHandler)); code != exitOK {
			return errors.New(problems.String())
		}
		return nil
	}
	all := []string{"--conf-from=" + at("conf"), "--conf-to=" + at("net.d/10-flannel.conflist"),
		"--plugin-from=" + at("plugin"), "--plugin-to=" + at("bin/flannel")}
	is := func(name, text string, mode os.FileMode) bool {
		if runtime.GOOS == "windows" {
			mode = 0o666 // that is: not read-only
		}
		info, err := os.Stat(at(name))
		got, _ := os.ReadFile(at(name))
		return err == nil && info.Mode() == mode && string(got) == text
	}
	if err := run(t.Context(), all...); err != nil || !is("net.d/10-flannel.conflist", conf, 0o644) || !is("bin/flannel", "binary", 0o755) {
		t.Fatalf("copied: %v\n%s", err, &out)
	}
	out.Reset()
	before, _ := os.Stat(at("bin/flannel"))
	if err := run(t.Context(), all...); err != nil || strings.Count(out.String(), ": unchanged\n") != 2 {
		t.Errorf("copied what is equal: %v\n%s", err, &out)
	}
	if after, _ := os.Stat(at("bin/flannel")); !os.SameFile(before, after) {
		t.Error("an equal plugin was written again")
	}
	if err := os.MkdirAll(at("plugins/none"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("plugins/flannel", "one")
	write("plugins/host-local", "two")
	if err := run(t.Context(), "--plugin-from="+at("plugins"), "--plugin-to="+at("several")); err != nil || !is("several/flannel", "one", 0o755) || !is("several/host-local", "two", 0o755) {
		t.Errorf("copied a directory: %v\n%s", err, &out)
	}
	out.Reset()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--conf-from --plugin-from"},
		{[]string{"--plugin-from=" + at("plugins/none"), "--plugin-to=" + at("several")}, at("plugins/none")},
		{[]string{"--conf-from=a"}, "--conf-from --conf-to"},
		{[]string{"--plugin-to=a", "--conf-from=a", "--conf-to=b"}, "--plugin-from --plugin-to"},
		{[]string{"now"}, `"now"`},
		{[]string{"--conf-from=" + at("none"), "--conf-to=" + at("x")}, at("none")},
	} {
		if err := run(t.Context(), c.args...); err == nil || !logtest.Names(err.Error(), strings.Fields(c.want)...) {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
	}

	write("net.d/10-flannel.conflist", `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"mesh"}]}`)
	out.Reset()
	if err := run(t.Context(), append(all, "--json")...); err != nil {
		t.Error(err)
	}
	want := cniAnswer{Files: []install.Outcome{{Path: at("bin/flannel"), Result: "unchanged"},
		{Path: at("net.d/10-flannel.conflist"), Result: "unchanged", Kept: []string{"mesh"}}}}
	if diff := cmp.Diff(want, read[cniAnswer](t, out.String())); diff != "" {
		t.Error("answer, want (-), got (+):\n", diff)
	}

	write("net.d/05-other.conflist", `{"name":"other","plugins":[{"type":"bridge"}]}`)
	out.Reset()
	if err := run(t.Context(), all...); err != nil || !logtest.Names(out.String(), "05-other.conflist") {
		t.Errorf("runtimes use another configuration: %v\n%s", err, &out)
	}
}
