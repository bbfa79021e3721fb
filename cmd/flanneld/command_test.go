package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/version"
)

// flanneldSays runs flanneld in this process.
func flanneldSays(ctx context.Context, args ...string) (code int, out, problems string) {
	var stdout, stderr strings.Builder
	code = run(ctx, process{args: args, stdout: &stdout, stderr: &stderr})
	return code, stdout.String(), stderr.String()
}

// removed returns a condition for eventually.True: Windows refuses to delete a file while a program reads it, and a directory until
// the last file in it is closed.
func removed(path string) func() bool { return func() bool { return os.RemoveAll(path) == nil } }

// watchedDir is a t.TempDir for files that are watched: Wine keeps a deleted directory until the watch has ended.
func watchedDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "watched") // deleted below
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eventually.True(t, "the directory is deleted", removed(dir)) })
	return dir
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

func TestCommandLines(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string // what either output names
	}{
		{"prepare --help", exitOK, "-network-mode"}, {"source-vip --help", exitOK, "-release"}, {"cleanup --help", exitOK, "-dry-run"},
		{"wait --help", exitOK, "-silence"}, {"source-vip --kube-proxy-version=latest", exitUsage, "latest"},
		{"prepare now", exitUsage, `prepare "now"`}, {"source-vip --for=1", exitUsage, "-for"},
		{"accept-withdrawal --help", exitOK, "-timeout"}, {"accept-withdrawal all", exitUsage, `accept-withdrawal "all"`},
		{"cleanup everything", exitUsage, `cleanup "everything"`}, {"handback --help", exitOK, "-dry-run"},
		{"help", exitOK, "--iface status doctor"}, {"help status", exitOK, "--peers"}, {"status -h", exitOK, "--peers"}, {"help stauts", exitUsage, "status"}, {"help status now", exitUsage, `"now"`},
		{"--v=99 help wait", exitOK, "--silence"}, {"help service", exitOK, "install uninstall"}, {"--v=99 version", exitOK, version.Version},
		{"stauts", exitUsage, "status"}, {"clean", exitUsage, "cleanup"}, {"status --jsn", exitUsage, "--jsn --json"}, {"status -peer", exitUsage, "--peer --peers"},
		{"status --subnet-file=x", exitUsage, "--subnet-file status"}, {"wait -timeout", exitUsage, "--timeout"}, {"wait -timeout soon", exitUsage, "--timeout"},
		{"completion bash", exitOK, "__start_flanneld"}, {"completion nosh", exitUsage, `"nosh"`}, {"__complete --iface eth0 sta", exitOK, "status"}, {"__complete status --pe", exitOK, "--peers"},
		{"--vmodule=x status", exitUsage, "--vmodule"}, {"--log-file=. status", exitError, "--log-file"},
	} {
		code, out, problems := flanneldSays(t.Context(), strings.Fields(c.args)...)
		if code != c.code || !logtest.Names(out+problems, strings.Fields(c.want)...) || code == exitUsage && out != "" {
			t.Errorf("flanneld %s ends with %d and says %s%s; want %q", c.args, code, out, problems, c.want)
		}
	}
}

// The help lists the commands for this system, but shows any that is asked for.
func TestListedCommands(t *testing.T) {
	for name, system := range map[string]string{"status": runtime.GOOS, "prepare": "windows", "cni-conf": "windows", "service": "windows", "handback": "linux"} {
		_, all, _ := flanneldSays(t.Context(), "help")
		if listed := strings.Contains(all, "\n  "+name+" "); listed != (system == runtime.GOOS) {
			t.Errorf("the help lists %s: %t", name, listed)
		}
		if code, one, problems := flanneldSays(t.Context(), "help", name); code != exitOK || one == "" || problems != "" {
			t.Errorf("the help of %s: %d, %q, %s", name, code, one, problems)
		}
	}
}

// Whoever reads --json gets one document, whatever goes wrong, and the error on stderr besides.
func TestJSONOfMistakes(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string // what the problem names
	}{
		{"--ifcae=x doctor --json", exitUsage, "--ifcae --iface"}, {"doctor all --json", exitUsage, `doctor "all"`},
		{"status --timeout=soon --json", exitUsage, "-timeout"}, {"status --json --verbose", exitUsage, "-verbose status --help"},
		{"cleanup --json everything", exitUsage, `cleanup "everything"`}, {"wait --timeout=0 --json", exitUsage, "-timeout"},
		{"net-conf --json", exitUsage, "--kube-subnet-mgr --net-config-path"}, {"prepare --json --timeout=-1s", exitUsage, "-timeout"},
		{"--kube-subnet-mgr net-conf --json --network-mode=l2", exitUsage, `--network-mode "l2" overlay l2bridge`},
		{"--kube-subnet-mgr --net-config-path=" + garbage + " net-conf --json", exitError, garbage + ": "},
		{"--kube-subnet-mgr --net-config-path=" + dir + " net-conf --json", exitError, dir},
		{"--kube-subnet-mgr --net-config-path=" + garbage + " cni-conf --json", exitUsage, garbage},
		{"--plugin=x cni-conf --json", exitUsage, "--plugin"}, {"cni-conf --json --dns=here", exitUsage, `"here"`},
		{"--kube-subnet-mgr cni-conf --json --service-cidr=10.96.0.0/33", exitUsage, `"10.96.0.0/33"`},
		{"install-cni --json", exitUsage, "--conf-from --plugin-from"}, {"install-cni --json --plugin-from=" + dir + " --plugin-to=" + garbage, exitError, garbage},
		{"source-vip --json --kube-proxy-version=latest", exitUsage, "latest"},
		{"service --json", exitUsage, "service --json install"}, {"service --json start", exitUsage, "service --json install"}, {"service restart --json", exitUsage, `"restart" start`},
		{"service install --json -- --ifcae=x", exitUsage, "--ifcae --iface"}, {"service start now --json", exitUsage, `start "now"`},
	} {
		code, out, problems := flanneldSays(t.Context(), append([]string{"--subnet-file=" + filepath.Join(dir, "subnet.env")}, strings.Fields(c.args)...)...)
		if strings.HasPrefix(c.args, "service") { // the daemon's flags are elsewhere
			code, out, problems = flanneldSays(t.Context(), strings.Fields(c.args)...)
		}
		if is := read[failure](t, out); code != c.code || !logtest.Names(is.Problem, strings.Fields(c.want)...) || !strings.HasPrefix(problems, "flanneld: ") {
			t.Errorf("flanneld %s ends with %d, want %d and %q:\n%s%s", c.args, code, c.code, c.want, out, problems)
		}
	}
}

// read takes the one JSON document that a command prints.
func read[T any](t *testing.T, text string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&v); err != nil || d.More() {
		t.Fatalf("%q is not one document: %v", text, err)
	}
	return v
}

// Only Windows has these: elsewhere they say so, and change nothing.
func TestCommandsOfWindows(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // where TestNewNode runs them
	}
	for args, want := range map[string]string{
		"prepare --network-mode=overlay": "prepare",
		"source-vip --release":           "source-vip",
	} {
		code, out, problems := flanneldSays(t.Context(), append([]string{"--subnet-file=" + filepath.Join(t.TempDir(), "subnet.env")}, strings.Fields(args)...)...)
		if code != exitError || out != "" || !logtest.Names(problems, want, "Windows", runtime.GOOS) {
			t.Errorf("%s ends with %d, says %q and %q", args, code, out, problems)
		}
	}
}
