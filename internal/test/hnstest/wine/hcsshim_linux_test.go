package wine_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/internal/test/nettest"
)

// hcsshim is a package of Microsoft for HNS. Its integration tests, written for
// a real HNS, run in Wine against the simulation.
const hcsshim = "github.com/Microsoft/hcsshim/hcn"

// notRun lists the tests that do not run, with reasons.
var notRun = map[string]string{
	"TestAccelnetNnvManagementMacAddresses": "tests network cards of Azure hosts, which are not related to Kubernetes",
}

func TestHcsshim(t *testing.T) {
	t.Parallel()
	m := hnstest.NewFor(t)
	addr := wine.Listen(t, m)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	program := filepath.Join(t.TempDir(), "hcn.test.exe")
	dir := filepath.Dir(nettest.Tool(t, "wine/run"))
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "integration", "-overlay",
		filepath.Join(dir, "overlay.json"), "-o", program, hcsshim)
	build.Env = append(os.Environ(), "GOOS=windows", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	prefix := ownPrefix(t)
	run := func(args ...string) string {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "run"), append([]string{program}, args...)...)
		cmd.Env = append(os.Environ(), prefix, "FLANNEL_HNS="+addr)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}

	var want []string
	for s := bufio.NewScanner(strings.NewReader(run("-test.list=^Test"))); s.Scan(); {
		if name := s.Text(); strings.HasPrefix(name, "Test") && notRun[name] == "" {
			want = append(want, name)
		}
	}
	if len(want) < 70 { // 78 in v0.14.0
		t.Fatalf("only %d tests: is this the right package?", len(want))
	}
	out := run("-test.v", "-test.timeout=10m", "-test.run=^("+strings.Join(want, "|")+")$")
	for _, name := range want {
		if !slices.Contains(passed(out), name) {
			t.Errorf("%s did not pass", name)
		}
	}
	// One test does not delete its endpoint, but deletes the network with it.
	if left := len(m.Admin().Networks()) + len(m.Admin().Endpoints()); left != 0 {
		t.Errorf("%d networks and endpoints are left", left)
	}
	if trouble := m.Trouble(); len(trouble) > 0 {
		t.Error(trouble)
	}
}

func passed(out string) (names []string) {
	for _, match := range regexp.MustCompile(`(?m)^--- PASS: (\S+)`).FindAllStringSubmatch(out, -1) {
		names = append(names, match[1])
	}
	return names
}
