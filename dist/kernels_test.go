package dist_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The commits of make test have, together, each part of the tests that it samples, on each kernel: that is chosen by the
// commit's last digit. All other tests run for each commit.
func TestSampleOfKernelTests(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("kernels.sh")
	if err != nil {
		t.Fatal(err)
	}
	list := func(args ...string) []string {
		out, err := exec.Command("sh", append([]string{"-c", string(script), "kernels.sh", "6.12", "list"}, args...)...).Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return slices.Collect(strings.Lines(string(out)))
	}
	const modules = "TestModulesAfterEveryOther"
	all, parts := list("all"), map[string]bool{}
	for digit := range 16 {
		sample := list("sample", fmt.Sprintf("1cd4dba%x0", digit))
		if other := list("sample", fmt.Sprintf("1cd4dba%xf", digit)); !slices.Equal(sample, other) {
			t.Errorf("another last digit, another sample:\n%s\n%s", sample, other)
		}
		for _, line := range all {
			if i := slices.IndexFunc(sample, func(of string) bool { return strings.HasPrefix(of, strings.TrimSuffix(line, "\n")) }); i >= 0 {
				parts[sample[i]] = true
			} else if !strings.Contains(line, " TestNoPacketIsLost/") {
				t.Errorf("digit %x: not in the sample: %s", digit, line)
			}
		}
	}
	for _, line := range all {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasSuffix(line, modules) {
			if !parts[line+"\n"] {
				t.Errorf("in no sample: %s", line)
			}
			continue
		}
		for part := range 3 {
			if want := fmt.Sprintf("%s/part_%d_of_3\n", line, part+1); !parts[want] {
				t.Errorf("in no sample: %s", want)
			}
		}
	}
}
