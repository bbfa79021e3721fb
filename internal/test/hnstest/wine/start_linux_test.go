package wine_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/nettest"
)

// ownPrefix returns a variable for bin/wine/run: a copy of the prefix, which only this test uses, because make test-windows
// stops the Wine of bin/wine/used, also while this test runs.
func ownPrefix(t *testing.T) string {
	t.Helper()
	prefix := filepath.Join(t.TempDir(), "prefix")
	if out, err := exec.Command("cp", "-a", nettest.Tool(t, "wine/prefix"), prefix).CombinedOutput(); err != nil {
		t.Fatalf("copy the Wine prefix: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(filepath.Join(nettest.Root(t), "dist/wine.sh"), "stop", prefix).CombinedOutput(); err != nil {
			t.Errorf("stop Wine: %v: %s", err, out)
		}
	})
	return "WINEPREFIX=" + prefix
}

// Processes that are started at the same time have no connection but their own to Wine's
// server. With the connection of another process, which ends before it runs, both its server
// and whoever started it wait for ever.
func TestStartedAtTheSameTime(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "start.exe")
	build := exec.Command("go", "build", "-overlay", nettest.Tool(t, "wine/overlay.json"), "-o", program, "./testdata/start")
	build.Env = append(os.Environ(), "GOOS=windows", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(nettest.Tool(t, "wine/run"), program)
	cmd.Env = append(os.Environ(), ownPrefix(t))
	in, err := cmd.StdinPipe() // all processes end with this pipe, however the test ends
	out, err2 := cmd.StdoutPipe()
	if err = errors.Join(err, err2); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "started" {
		t.Fatalf("the program printed %q (%v)", line, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline") // of which those of the program count
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range lines {
		line, _ := os.ReadFile(file) // others end
		if words := strings.Split(string(line), "\x00"); len(words) < 2 || words[1] != "child" ||
			!strings.HasSuffix(strings.ReplaceAll(words[0], `\`, "/"), program) {
			continue
		}
		found++
		fds := filepath.Join(filepath.Dir(file), "fd")
		entries, err := os.ReadDir(fds)
		if err != nil {
			t.Fatal(err)
		}
		sockets := 0
		for _, e := range entries {
			if at, _ := os.Readlink(filepath.Join(fds, e.Name())); strings.HasPrefix(at, "socket:") {
				sockets++
			}
		}
		if sockets != 1 {
			t.Errorf("%s has %d connections", filepath.Dir(file), sockets)
		}
	}
	if found != 8 {
		t.Errorf("found %d processes", found)
	}
}
