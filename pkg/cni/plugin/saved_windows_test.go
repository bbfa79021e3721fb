package plugin

import (
	"os"
	"testing"
	"time"
)

// ADD waits for a program that has opened the new file, such as a virus scanner.
func TestSavedFileHeldOpen(t *testing.T) {
	a := attachment{dir: t.TempDir(), id: "pod1", ifName: "eth0", network: "cbr0"}
	held, err := os.Create(a.tempPath()) // like most programs, os.Create does not share the right to rename
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseSaved([]byte(`{"type":"fake-bridge","name":"cbr0"}`))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := a.write(a.firstPath(), d); err == nil || time.Since(start) < time.Second/2 {
		t.Errorf("with a program that does not close it: %v after %v", err, time.Since(start))
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.write(a.firstPath(), d); err != nil {
		t.Error(err)
	}
	if saved, err := (&savedFile{path: a.firstPath()}).read(); err != nil || saved.Type != d.Type {
		t.Errorf("saved %+v, %v", saved, err)
	}
}
