package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
)

// What the manifests' container for CNI runs restores the files, and cannot use the network though its pod has it.
func TestInstallCNIHasNoNetwork(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "conf"), filepath.Join(dir, "net.d", "10-flannel.conflist")
	if err := os.WriteFile(from, []byte(`{"name":"cbr0","plugins":[{"type":"flannel"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "install-cni", "--watch", "--conf-from="+from, "--conf-to="+to)
	cmd.Env = append(os.Environ(), beFlanneld+"=1")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	for range 2 {
		eventually.True(t, "the file is there", exists(to))
		if err := os.Remove(to); err != nil {
			t.Fatal(err)
		}
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err == nil && (!strings.Contains(string(text), "Seccomp:\t2\n") || !strings.Contains(string(text), "NoNewPrivs:\t1\n")) {
			t.Errorf("%s may use the network:\n%s", thread, text)
		}
	}
}
