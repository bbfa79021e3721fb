package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The release says which Go has built it: programs of another Go are refused.
func TestProgramOfAnotherGo(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	ours := []byte(runtime.Version())
	other := bytes.ReplaceAll(ours, []byte("go1."), []byte("go0."))
	r := &release{programs: t.TempDir(), source: "../..", systems: []system{{"linux", "amd64"}}}
	for _, path := range r.allPrograms() {
		if err := os.WriteFile(path, bytes.ReplaceAll(program, ours, other), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.modules(); err == nil || !strings.Contains(err.Error(), string(other)) || !strings.Contains(err.Error(), filepath.Base(r.program("flanneld", r.systems[0]))) {
		t.Errorf("got %v", err)
	}
}
