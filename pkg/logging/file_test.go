package logging

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// words are the messages of a log.
func words(log string) string {
	var all []string
	for line := range strings.Lines(log) {
		_, rest, _ := strings.Cut(line, "msg=")
		all = append(all, strings.Fields(rest)[0])
	}
	return strings.Join(all, " ")
}

func readIf(t *testing.T, path string) string {
	t.Helper()
	if path == "" {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "flanneld.log")
	write := func(l *logFile, text string) {
		t.Helper()
		if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	is := func(what, now, before string) {
		t.Helper()
		if got := readIf(t, path); got != now {
			t.Errorf("%s: %q", what, got)
		}
		if got, _ := os.ReadFile(path + ".1"); string(got) != before {
			t.Errorf("%s: %q before", what, got)
		}
	}
	open := func(limit int64) *logFile {
		t.Helper()
		l, err := openLogFile(path)
		if err != nil {
			t.Fatal(err)
		}
		l.limit = limit
		return l
	}
	l := open(10)
	write(l, "0123456789")
	is("up to the limit", "0123456789", "")
	write(l, "a")
	is("above it", "a", "0123456789")
	l.limit = 2
	write(l, "b")
	write(l, "a line longer than the limit")
	is("again", "a line longer than the limit", "ab")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l = open(100)
	write(l, "+")
	is("another start", "a line longer than the limit+", "ab")

	// What is in the way of the name keeps the file growing, and the log whole.
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".1", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.limit = 1
	write(l, "-")
	is("it cannot be renamed", "a line longer than the limit+-", "")
	if l.limit <= l.size {
		t.Errorf("the next line tries again already: %d bytes of %d", l.size, l.limit)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("who may read the log: %v, %v", info.Mode(), err)
	}
}
