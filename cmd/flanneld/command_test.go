package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// flanneldSays runs flanneld in this process.
func flanneldSays(ctx context.Context, args ...string) (code int, out, problems string) {
	var stdout, stderr strings.Builder
	code = run(ctx, process{args: args, stdout: &stdout, stderr: &stderr})
	return code, stdout.String(), stderr.String()
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for start := time.Now(); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 2*time.Minute {
			t.Fatalf("%s: not so after 2 min", what)
		}
	}
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

func TestCommandLines(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string // in either output
	}{
		{"prepare --help", exitOK, "-network-mode"}, {"source-vip --help", exitOK, "-release"}, {"cleanup --help", exitOK, "-dry-run"},
		{"wait --help", exitOK, "-silence"}, {"source-vip --kube-proxy-version=latest", exitUsage, "no version of Kubernetes"},
		{"prepare now", exitUsage, `prepare takes no argument "now"`}, {"source-vip --for=1", exitUsage, "flag provided but not defined"},
		{"cleanup everything", exitUsage, "takes no argument"},
	} {
		code, out, problems := flanneldSays(t.Context(), strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out+problems, c.want) {
			t.Errorf("flanneld %s ends with %d and says %s%s; want %q", c.args, code, out, problems, c.want)
		}
	}
}

// Only Windows has these: elsewhere they say so, and change nothing.
func TestCommandsOfWindows(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // where TestNewNode runs them
	}
	for args, want := range map[string]string{
		"prepare --network-mode=overlay": "this is for Windows, where making a network takes the host's address away",
		"source-vip --timeout=0":         "this is for Windows, whose kube-proxy wants an address of its own",
	} {
		code, out, problems := flanneldSays(t.Context(), append([]string{"--subnet-file=" + filepath.Join(t.TempDir(), "subnet.env")}, strings.Fields(args)...)...)
		if code != exitError || out != "" || !strings.Contains(problems, want) {
			t.Errorf("%s ends with %d, says %q and %q", args, code, out, problems)
		}
	}
}
