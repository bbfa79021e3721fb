package dist_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fuzzTarget is the source of a package with one target that runs a statement for each input b.
func fuzzTarget(name, statement string) string {
	return "package x\nimport \"testing\"\n" +
		"func " + name + "(f *testing.F) {\n\tf.Add([]byte(`seed`))\n\tf.Fuzz(func(t *testing.T, b []byte) { " + statement + " })\n}\n"
}

// TestFuzz runs fuzz.sh for a module with two targets: one after a target that fails is run, too, and what the runs find
// is kept.
func TestFuzz(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("fuzz.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir, corpus := t.TempDir(), t.TempDir()
	for _, sub := range []string{"dist", "a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "go.mod"), "module flannel\n")
	write(t, filepath.Join(dir, "dist/fuzz.sh"), string(script))
	write(t, filepath.Join(dir, "a/a_test.go"), fuzzTarget("FuzzFails", "if string(b) != `seed` { t.Error() }"))
	write(t, filepath.Join(dir, "b/b_test.go"), fuzzTarget("FuzzHolds", "if string(b) != `seed` { t.Log() }"))
	for _, args := range []string{"init -q", "add ."} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// failed runs the script, and returns the targets that it names at the end.
	failed := func(floor string) (targets []string) {
		cmd := exec.Command("sh", filepath.Join(dir, "dist/fuzz.sh"))
		cmd.Env = append(os.Environ(), "GO=go", "GOFLAGS=-buildvcs=false", "FUZZTIME=500x", "FUZZFLOOR="+floor, "FUZZCORPUS="+corpus)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err == nil {
			t.Errorf("it succeeded with floor %s", floor)
		}
		for _, name := range []string{"FuzzFails", "FuzzHolds"} {
			if strings.Contains(stderr.String(), name) {
				targets = append(targets, name)
			}
			if !strings.Contains(string(out), name) {
				t.Errorf("%s did not run:\n%s%s", name, out, &stderr)
			}
		}
		return targets
	}
	if got := failed("0"); !slices.Equal(got, []string{"FuzzFails"}) {
		t.Errorf("failed: %v", got)
	}
	for _, kept := range []string{dir + "/a/testdata/fuzz/FuzzFails", corpus + "/b/FuzzHolds"} {
		if files, err := os.ReadDir(kept); err != nil || len(files) == 0 {
			t.Errorf("%s has %d inputs: %v", kept, len(files), err)
		}
	}
	if got := failed("1000000000000"); !slices.Equal(got, []string{"FuzzFails", "FuzzHolds"}) {
		t.Errorf("failed, or slower than a rate that no target has: %v", got)
	}
}
