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

// Readers that open the file repeatedly see the old or the new text, never a part,
// and the file always exists.
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
				time.Sleep(10 * time.Millisecond) // in which nobody reads
			}
		}()
	}
	for i := range 50 {
		if err := retryReplace(path, texts[(i+1)%2]); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond) // in which nobody writes
	}
	readers.Wait()
	close(stop)
	for range 3 {
		saw := <-seen
		t.Logf("read the first text %d times, the second %d times", saw[0], saw[1])
	}
	onlyFile(t, path)
}

// retryReplace replaces a file. On a busy machine a reader may keep it open for
// longer than Replace waits.
func retryReplace(path string, text []byte) (err error) {
	for tries := 60; tries > 0; tries-- {
		if err = Replace(path, text); !inUse(err) {
			break
		}
	}
	return err
}

// A reader that keeps the file open reads the old text to its end. On Windows,
// Replace waits for it.
func TestReplaceHeldOpen(t *testing.T) {
	t.Parallel() // it mostly waits
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
	go func() { written <- retryReplace(path, []byte("two")) }()
	if runtime.GOOS != "windows" {
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	} else {
		select {
		case err := <-written:
			t.Fatalf("replaced a file that is open: %v", err)
		case <-time.After(replaceWithin / 4):
		}
	}
	if text, err := io.ReadAll(held); err != nil || string(text) != "one" {
		t.Errorf("the reader that opened it before reads %q, %v", text, err)
	}
	held.Close()
	if runtime.GOOS == "windows" {
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		held = open()
		start := time.Now()
		if err := write("three"); err == nil || time.Since(start) < replaceWithin/2 {
			t.Errorf("with a reader that does not close it: %v after %v", err, time.Since(start))
		} else {
			t.Log(err)
		}
		held.Close()
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "two" {
		t.Errorf("the file has %q, %v", text, err)
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

func TestPut(t *testing.T) {
	to := filepath.Join(t.TempDir(), "a", "b", "to.exe")
	for _, c := range []struct {
		text    string
		changed bool
	}{{"x", true}, {"x", false}, {"more", true}} {
		if changed, err := Put(to, []byte(c.text), 0o755); err != nil || changed != c.changed {
			t.Errorf("%q: changed %v, %v", c.text, changed, err)
		}
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "more" {
		t.Errorf("%q, %v", text, err)
	}
}

// Several goroutines create one file: one of them succeeds, and the file has its text.
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
		t.Errorf("%d created %q, %v; the last of them was %d", winners, text, err, winner)
	}
	onlyFile(t, path)
}
