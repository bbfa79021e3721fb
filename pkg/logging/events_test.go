package logging

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeLog is an event log that keeps its events.
type fakeLog struct{ lines []string }

func (l *fakeLog) Warning(id uint32, text string) error {
	l.lines = append(l.lines, fmt.Sprintf("warning %d: %s", id, text))
	return nil
}

func (l *fakeLog) Error(id uint32, text string) error {
	l.lines = append(l.lines, fmt.Sprintf("error %d: %s", id, text))
	return nil
}

func TestEvents(t *testing.T) {
	var got fakeLog
	log := slog.New(newEvents(&got)).With("node", "w1")
	log.Info("peers changed")
	log.Debug("set route")
	log.Warn("ignoring peer", "subnet", "10.5.1.0/24", "error", "its VNI is 4096\nand ours 1")
	log.WithGroup("hns").Error("network deleted", "time", "x", "level", "y")
	fmt.Fprintln(eventErrors{&got}, "flanneld: --x: unknown flag")
	want := []string{
		`warning 1: msg="ignoring peer" node=w1 subnet=10.5.1.0/24 error="its VNI is 4096\nand ours 1"`,
		`error 1: msg="network deleted" node=w1 hns.time=x hns.level=y`,
		`error 1: flanneld: --x: unknown flag`,
	}
	if d := cmp.Diff(want, got.lines); d != "" {
		t.Error(d)
	}
	long := strings.Repeat("ä", 40_000)
	for _, write := range []func(){func() { log.Error(long) }, func() { fmt.Fprintln(eventErrors{&got}, "x"+long) }} {
		got.lines = nil
		write()
		if n := len(got.lines[0]); n > eventMax+20 || n < eventMax-20 || strings.Contains(got.lines[0], "\ufffd") {
			t.Errorf("an event of %d bytes: …%q", n, got.lines[0][n-20:])
		}
	}
}

// The log goes to stderr or to the file, and warnings of a service go to the event
// log.
func TestDestinations(t *testing.T) {
	for _, c := range []struct {
		file, events bool
		want         string // the messages in stderr, file and event log
	}{
		{false, false, "info warn||"}, {true, false, "|info warn|"}, {false, true, "||warn"}, {true, true, "|info warn|warn"},
	} {
		var stderr strings.Builder
		var events fakeLog
		o := Options{Format: "text", Stderr: &stderr}
		if c.file {
			o.File = t.TempDir() + "/new/flanneld.log"
		}
		if c.events {
			o.Events = newEvents(&events)
		}
		log, closeLog, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("info")
		log.Warn("warn")
		if err := closeLog(); err != nil {
			t.Error(err)
		}
		got := words(stderr.String()) + "|" + words(readIf(t, o.File)) + "|" + words(strings.Join(events.lines, "\n"))
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if _, _, err := New(Options{File: t.TempDir(), Stderr: io.Discard}); err == nil || !strings.Contains(err.Error(), "--log-file: ") {
		t.Errorf("a directory as the log file: %v", err)
	}
}
