package file

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestReplaceWhileRead has readers open the file again and again: they see one text or the other, never a part, never
// no file.
func TestReplaceWhileRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	texts := [][]byte{bytes.Repeat([]byte("a"), 1<<16), bytes.Repeat([]byte("b"), 1<<15)}
	if err := Replace(path, texts[0]); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	stop, seen := make(chan struct{}), make(chan [2]int)
	for range 3 {
		readers.Add(1)
		go func() {
			hasRead := sync.OnceFunc(readers.Done)
			var saw [2]int
			for {
				select {
				case <-stop:
					seen <- saw
					return
				default:
				}
				switch text, err := os.ReadFile(path); {
				case inUse(err):
				case err != nil:
					t.Error(err)
				case bytes.Equal(text, texts[0]):
					hasRead()
					saw[0]++
				case bytes.Equal(text, texts[1]):
					hasRead()
					saw[1]++
				default:
					t.Errorf("read %d bytes that nobody wrote", len(text))
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	for i := range 50 {
		if err := again(path, texts[(i+1)%2]); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond)
	}
	readers.Wait()
	close(stop)
	for range 3 {
		saw := <-seen
		t.Logf("read %d times the one, %d times the other", saw[0], saw[1])
	}
	onlyFile(t, path)
}

// again replaces a file. A reader that a busy machine lets stand still keeps it open for longer than is waited for.
func again(path string, text []byte) (err error) {
	for tries := 60; tries > 0; tries-- {
		if err = Replace(path, text); !inUse(err) {
			break
		}
	}
	return err
}

// TestReplaceHeldOpen has a reader that keeps the file open: it reads to the end what it opened, and on Windows is
// waited for.
func TestReplaceHeldOpen(t *testing.T) {
	t.Parallel() // it waits
	path := filepath.Join(t.TempDir(), "subnet.env")
	write := func(text string) error { return Replace(path, []byte(text)) }
	open := func() *os.File {
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if err := write("one"); err != nil {
		t.Fatal(err)
	}
	held := open()
	written := make(chan error)
	go func() { written <- again(path, []byte("two")) }()
	if runtime.GOOS != "windows" {
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	} else {
		select {
		case err := <-written:
			t.Fatalf("replaced a file that somebody has open: %v", err)
		case <-time.After(replaceWithin / 4):
		}
	}
	if text, err := io.ReadAll(held); err != nil || string(text) != "one" {
		t.Errorf("who had opened it reads %q, %v", text, err)
	}
	held.Close()
	if runtime.GOOS == "windows" {
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		held = open()
		start := time.Now()
		if err := write("three"); err == nil || time.Since(start) < replaceWithin/2 {
			t.Errorf("held open for good: %v after %v", err, time.Since(start))
		} else {
			t.Log(err)
		}
		held.Close()
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "two" {
		t.Errorf("then there is %q, %v", text, err)
	}
	onlyFile(t, path)
}

func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "a", "b", "to.exe")
	touch(t, from)
	for i, want := range []bool{true, false, true} {
		if i == 2 {
			if err := os.WriteFile(from, []byte("more"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if changed, err := Copy(from, to, 0o755); err != nil || changed != want {
			t.Errorf("copy %d: changed %v, %v", i, changed, err)
		}
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "more" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Copy(filepath.Join(dir, "none"), to, 0o755); !os.IsNotExist(err) {
		t.Errorf("from nothing: %v", err)
	}
}

// TestCreate has several make one file: one succeeds, and its text is the file's.
func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "conf")
	results := make(chan int)
	for i := range 8 {
		go func() {
			switch err := Create(path, []byte{byte(i)}, 0o644); {
			case err == nil:
				results <- i
			case errors.Is(err, fs.ErrExist):
				results <- -1
			default:
				t.Error(err)
				results <- -1
			}
		}()
	}
	winners := 0
	var winner byte
	for range 8 {
		if i := <-results; i >= 0 {
			winners, winner = winners+1, byte(i)
		}
	}
	if text, err := os.ReadFile(path); err != nil || winners != 1 || !bytes.Equal(text, []byte{winner}) {
		t.Errorf("%d have made %q, %v; the last of them was %d", winners, text, err, winner)
	}
	onlyFile(t, path)
}
