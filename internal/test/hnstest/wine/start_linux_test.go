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
