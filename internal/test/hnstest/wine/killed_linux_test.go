package wine_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/internal/test/nettest"
	"flannel/pkg/windows/hns"
)

// When a program is killed, its handles are closed, and those of other programs
// stay open.
func TestKilledProgram(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "hold.exe")
	build := exec.Command("go", "build", "-o", program, "./testdata/hold")
	build.Env = append(os.Environ(), "GOOS=windows", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	prefix := ownPrefix(t)
	// Once on a busy machine, Wine kept the connections of a killed program. A machine cannot
	// know of such a kill. Other programs then tell, on another machine.
	for try := 1; !closesHandles(t, prefix, program, time.Minute); try++ {
		if t.Log("the connections of a killed program stay open"); try == 5 {
			t.Fatal("nor are they closed for other programs")
		}
	}
}

// closesHandles starts two programs on a machine, kills one after the other, and reports whether
// the handles of each are closed within the limit.
func closesHandles(t *testing.T, prefix, program string, limit time.Duration) bool {
	m := hnstest.NewFor(t)
	addr := wine.Listen(t, m)
	made, err := m.CreateNetwork(json.RawMessage(`{"Name":"nat","Type":"NAT","SchemaVersion":{"Major":2,"Minor":0}}`))
	if err != nil {
		t.Fatal(err)
	}
	network, err := hns.DecodeNetwork(made)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command(nettest.Tool(t, "wine/run"), program, network.ID)
		cmd.Env = append(os.Environ(), prefix, "FLANNEL_HNS="+addr)
		_, err := cmd.StdinPipe() // the program ends with this pipe, however the test ends
		out, err2 := cmd.StdoutPipe()
		if err = errors.Join(err, err2); err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "0x0" {
			t.Fatalf("the program ended or printed %s (%v)", line, err)
		}
		return cmd
	}
	first, second := start(), start()
	eventually.True(t, "both have their handles", func() bool { return m.OpenHandles() == 4 })
	for left, cmd := range []*exec.Cmd{second, first} {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		want := 2 - 2*left
		for began := time.Now(); m.OpenHandles() != want; time.Sleep(time.Millisecond) { // between two looks
			if time.Since(began) > limit {
				return false
			}
		}
	}
	return true
}
