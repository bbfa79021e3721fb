package logging

import (
	"bytes"
	"io"
	"strconv"
	"testing"
)

// TestRecent checks that the log keeps its last lines in memory, whole ones and not
// too many.
func TestRecent(t *testing.T) {
	var recent Recent
	log, closeLog, err := New(Options{Stderr: io.Discard, Recent: &recent})
	if err != nil {
		t.Fatal(err)
	}
	defer closeLog()
	log.Debug("hidden")
	log.Info("first")
	if text := recent.Text(); bytes.Count(text, []byte("\n")) != 1 || !bytes.Contains(text, []byte("msg=first")) {
		t.Errorf("after one line:\n%s", text)
	}
	const count = 10_000
	for i := range count {
		log.Info("line", "number", i)
	}
	text := recent.Text()
	switch {
	case len(text) > maxRecent || len(text) < maxRecent*9/10:
		t.Errorf("%d bytes are kept, want nearly %d", len(text), maxRecent)
	case bytes.Contains(text, []byte("first")):
		t.Error("an old line was not dropped")
	case !bytes.HasPrefix(text, []byte("time=")) || !bytes.HasSuffix(text, []byte("number="+strconv.Itoa(count-1)+"\n")):
		t.Errorf("not whole lines up to the last one: %.60q … %q", text, text[len(text)-60:])
	}
}
