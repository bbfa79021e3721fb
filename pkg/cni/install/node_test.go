package install

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"flannel/internal/test/eventually"
)

// node is a directory with sources and targets, which Keep watches after start.
type node struct {
	t   *testing.T
	dir string
	Files
	log *records
}

func newNode(t *testing.T) *node {
	dir, err := os.MkdirTemp("", "cni") // which is deleted below
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, log: &records{}}
	// On Windows, a directory cannot be deleted until the watch on it has ended.
	t.Cleanup(func() { n.until("removed", func() bool { return os.RemoveAll(dir) == nil }) })
	n.Files = Files{n.path("conf"), n.path("net.d/10-flannel.conflist"), n.path("flannel"), n.path("bin/flannel"), false}
	n.write(n.ConfFrom, source)
	n.write(n.PluginFrom, "a program")
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, filepath.FromSlash(name)) }

func (n *node) start() {
	n.t.Helper()
	n.keep()
	n.until("installed", func() bool { return n.read(n.PluginTo) == "a program" && n.read(recordOf(n.ConfTo)) == source })
}

// remove deletes a file that Keep watches. Windows refuses while somebody reads it.
func (n *node) remove(path string) {
	n.t.Helper()
	n.until("deleted", func() bool { return os.Remove(path) == nil })
}

// keep has Keep run until the test ends.
func (n *node) keep() {
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error)
	go func() { ended <- n.Keep(ctx, slog.New(n.log)) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
}

// replace writes a file by renaming another one over it, so that readers never see a
// part of it.
func (n *node) replace(path, text string) {
	n.t.Helper()
	n.write(path+".tmp", text)
	n.until("replaced", func() bool { return os.Rename(path+".tmp", path) == nil }) // Windows refuses while someone reads
}

func (n *node) write(path, text string) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(path), 0o755))
	n.must(os.WriteFile(path, []byte(text), 0o644))
}

func (n *node) program(path, text string) {
	n.t.Helper()
	n.write(path, text)
	n.must(os.Chmod(path, 0o755))
}

func (n *node) read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	eventually.Nil(n.t, what, func() error {
		if !ok() {
			return fmt.Errorf("there is\n%s\n%s", n.read(n.ConfTo), n.log)
		}
		return nil
	})
}

// types are those of the plugins in the configuration.
func (n *node) types() string {
	c, err := parseConf([]byte(n.read(n.ConfTo)))
	if err != nil {
		return err.Error()
	}
	return strings.Join(c.types(), " ")
}

// records keeps what is logged, as "LEVEL message key=value …".
type records struct {
	mu  sync.Mutex
	all []string
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *records) WithGroup(string) slog.Handler            { return r }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, line)
	return nil
}

func (r *records) with(parts ...string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.all {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}

func (r *records) String() string { return strings.Join(r.with(""), "\n") }
