package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// Flags that do not go together, and an API server that nothing names.
func TestClusterMistakes(t *testing.T) {
	nowhere := "--subnet-file=" + filepath.Join(t.TempDir(), "subnet.env")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"status --cluster --watch", exitUsage, "--watch --cluster"}, {"status --cluster --peers", exitUsage, "--peers --cluster"},
		{"status --cluster --history", exitUsage, "--history --cluster"}, {"status --cluster --interval=1s", exitUsage, "--interval --cluster"},
		{"status --selector=a=b", exitUsage, "--selector --cluster"}, {"status --cluster --selector=a=(", exitUsage, "--selector"},
		{"status --cluster -o yaml", exitUsage, `"yaml"`},
		{"status --cluster", exitError, "--kubeconfig-file"},
		{"--kubeconfig-file=/nowhere status --cluster", exitError, "/nowhere"},
		{"--kube-api-url=http://127.0.0.1:1 status --cluster", exitError, "127.0.0.1:1"},
	} {
		code, out, problems := flanneldSays(t.Context(), append([]string{nowhere}, strings.Fields(c.args)...)...)
		if code != c.code || out != "" || !logtest.Names(problems, strings.Fields(c.want)...) || strings.Count(problems, "\n") != 1 {
			t.Errorf("flanneld %s ends with %d, want %d and %q:\n%s%s", c.args, code, c.code, c.want, out, problems)
		}
		args := slices.Concat([]string{nowhere}, strings.Fields(c.args), []string{"--json"})
		if _, out, _ := flanneldSays(t.Context(), args...); read[failure](t, out).Problem == "" {
			t.Errorf("flanneld %s --json: %s", c.args, out)
		}
	}
}
