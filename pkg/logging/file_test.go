package logging

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// words returns the messages of a log, each of which is one word.
func words(log string) string {
	var messages []string
	for line := range strings.Lines(log) {
		_, rest, _ := strings.Cut(line, "msg=")
		messages = append(messages, strings.Fields(rest)[0])
	}
	return strings.Join(messages, " ")
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
	check := func(step, current, rotated string) {
		t.Helper()
		if got := readIf(t, path); got != current {
			t.Errorf("%s: the file has %q, want %q", step, got, current)
		}
		if got, _ := os.ReadFile(path + ".1"); string(got) != rotated {
			t.Errorf("%s: the rotated file has %q, want %q", step, got, rotated)
		}
	}
	open := func(limit int64) *logFile {
		t.Helper()
		w, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		l := w.(*logFile)
		if l.crashes {
			t.Error("stack traces go to a file that is not that of New")
		}
		l.limit = limit
		return l
	}
	l := open(10)
	write(l, "0123456789")
	check("up to the limit", "0123456789", "")
	write(l, "a")
	check("above the limit", "a", "0123456789")
	l.limit = 2
	write(l, "b")
	write(l, "a line longer than the limit")
	check("again", "a line longer than the limit", "ab")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l = open(100)
	write(l, "+")
	check("another start", "a line longer than the limit+", "ab")

	// If the file cannot be renamed, it grows beyond the limit, and nothing is lost.
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".1", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.limit = 1
	write(l, "-")
	check("it cannot be renamed", "a line longer than the limit+-", "")
	if l.limit <= l.size {
		t.Errorf("the next line rotates again: %d bytes of %d", l.size, l.limit)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("other users may access the log: %v, %v", info.Mode(), err)
	}
}

// TestLogFileOfGoroutines has two goroutines write lines while the file is rotated. The race detector sees what they share.
func TestLogFileOfGoroutines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flannel-node.log")
	w, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.(*logFile).limit = 1000 // after a rotation it is maxFile
	const line = "0123456789\n"
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 100 {
				if _, err := w.Write([]byte(line)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	rotated, current := readIf(t, path+".1"), readIf(t, path)
	if len(rotated) != 990 || rotated+current != strings.Repeat(line, 200) {
		t.Errorf("the files have:\n%s\nand\n%s", rotated, current)
	}
}

// TestLogFileError checks that New marks an error about the file, and no other.
func TestLogFileError(t *testing.T) {
	if _, _, err := New(Options{File: t.TempDir()}); !errors.Is(err, ErrFile) {
		t.Errorf("a directory as the file: %v", err)
	}
	if _, _, err := New(Options{Stderr: io.Discard, VModule: "x"}); err == nil || errors.Is(err, ErrFile) {
		t.Errorf("an invalid option: %v", err)
	}
	if w, err := OpenFile(t.TempDir()); w != nil || err == nil {
		t.Errorf("a directory is opened: %v, %v", w, err)
	}
}
