package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// A service mesh adds its plugin while Keep runs: it is kept when the source
// changes, and the file is not written again without need.
func TestChainedPluginStays(t *testing.T) {
	for name, chain := range map[string]func(*node){
		"istio":   func(n *node) { n.replace(n.ConfTo, istio) },
		"linkerd": func(n *node) { n.write(n.ConfTo, linkerd) },
		"removed, then written": func(n *node) {
			n.remove(n.ConfTo)
			n.until("restored", func() bool { return n.read(n.ConfTo) == source })
			n.replace(n.ConfTo, istio)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start()
			chain(n)
			chained := n.read(n.ConfTo)
			// Once the new source is applied, Keep has seen the chained file.
			changed := strings.Replace(source, `"hairpinMode": true`, `"hairpinMode": false`, 1)
			n.replace(n.ConfFrom, changed)
			n.until("applied", func() bool { return n.read(recordOf(n.ConfTo)) == changed })
			want := strings.Replace(n.types(), "flannel portmap ", "", 1)
			if !strings.HasSuffix(want, "-cni") || !strings.Contains(n.read(n.ConfTo), `"hairpinMode": false`) {
				t.Errorf("a new source made of\n%s\nthis:\n%s", chained, n.read(n.ConfTo))
			}
			n.until("logged that it was kept", func() bool { return len(n.log.with("INFO", "kept="+want)) == 1 })
			// A new process does not write it.
			before, _ := os.Stat(n.ConfTo)
			if done, err := n.Install(slog.New(n.log)); err != nil || done[1].Result != "unchanged" || len(done[1].Kept) != 1 {
				t.Errorf("installed again: %+v, %v", done, err)
			}
			if after, err := os.Stat(n.ConfTo); err != nil || !os.SameFile(before, after) {
				t.Error("a new process wrote the file again:", err)
			}
		})
	}
}

// A damaged file is restored, with what others had added before it was damaged.
func TestBrokenFileIsRestored(t *testing.T) {
	chained := strings.Replace(istio, `"name": "cbr0",`, `"name": "cbr0", "example.com/theirs": {"b": 1, "a": 2},`, 1)
	for name, text := range map[string]string{
		"empty": "", "garbage": "x", "cut": chained[:100], "no list": `{"name":"cbr0","type":"flannel"}`, "no name": `{"plugins":[{"type":"flannel"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start()
			n.replace(n.ConfTo, chained)
			n.must(os.Chmod(n.ConfTo, 0o600)) // as security benchmarks want it
			n.until("seen", func() bool { return n.seen(chained) })
			n.write(n.ConfTo, text)
			n.until("restored", func() bool { return n.types() == "flannel portmap istio-cni" })
			if !strings.Contains(n.read(n.ConfTo), `"example.com/theirs"`) {
				t.Errorf("a foreign key is gone:\n%s", n.read(n.ConfTo))
			}
			if info, err := os.Stat(n.ConfTo); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestRestoreOwnPluginAndDeletedFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.write(n.ConfTo, list("mesh"))
	n.until("flannel among others", func() bool { return n.types() == "flannel portmap mesh" })
	n.remove(n.ConfTo)
	for _, dir := range []string{"net.d", "bin"} {
		_ = os.RemoveAll(n.path(dir)) // its files may come back before it is empty
	}
	n.until("all back", func() bool { return n.types() == "flannel portmap" && n.read(n.PluginTo) == "a program" })
}

// While the source has no plugins, they are looked for again. What the source is then decides whether it is a directory.
func TestPluginsComeLater(t *testing.T) {
	for name, prepare := range map[string]func(*node) error{
		"missing":        func(n *node) error { return nil },
		"not accessible": func(n *node) error { return os.WriteFile(n.path("image"), nil, 0o644) }, // on Windows, this is missing as well
		"empty":          func(n *node) error { return os.MkdirAll(n.PluginFrom, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.PluginFrom, n.PluginTo = n.path("image/plugins"), n.path("bin")
				n.must(prepare(n))
				found := make(chan []target, 1)
				go func() { found <- n.awaitPlugins(t.Context(), slog.New(n.log)) }()
				synctest.Wait()
				if len(found) > 0 || len(n.log.with("WARN", "path="+n.PluginFrom)) != 1 {
					t.Fatalf("the source has no plugins: %d, %v", len(found), n.log)
				}
				if name == "not accessible" {
					n.remove(n.path("image"))
				}
				n.write(filepath.Join(n.PluginFrom, "plugin"), "binary")
				if plugins := <-found; len(plugins) != 1 || plugins[0].to != n.path("bin/plugin") {
					t.Errorf("found %v", plugins)
				}
			})
		})
	}
}

// While the source has no plugins, the configuration is installed even so.
func TestKeepWithoutPlugins(t *testing.T) {
	n := newNode(t)
	n.PluginFrom = n.path("empty")
	n.must(os.Mkdir(n.PluginFrom, 0o755))
	n.keep()
	n.until("the configuration is installed", func() bool { return n.read(n.ConfTo) == source })
	n.until("logged", func() bool { return len(n.log.with("WARN", "path="+n.PluginFrom)) > 0 })
}

// seen waits until Keep has seen that the configuration is text.
func (n *node) seen(text string) bool {
	if n.read(n.ConfTo) != text {
		return false
	}
	// Keep writes a missing record after it has read the configuration.
	_ = os.Remove(recordOf(n.ConfTo))
	n.write(n.ConfFrom, source)
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(time.Millisecond) { // the caller tries again
		if n.read(recordOf(n.ConfTo)) == source {
			return true
		}
	}
	return false
}

// If another program deletes the file again and again, the pauses between the
// repairs grow, and two lines are logged.
func TestRepeatedRepairsArePaced(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	start, deleted := time.Now(), 0
	n.until("restored twice", func() bool {
		if os.Rename(n.ConfTo, n.ConfTo+".cilium_bak") == nil {
			deleted++
		}
		return deleted > 2 && time.Since(start) > 4*time.Second
	})
	n.until("logged that it goes on", func() bool { return len(n.log.with("WARN", "longest=")) > 0 })
	t.Logf("deleted %d times in %v", deleted, time.Since(start))
	// Repairs: at once, after 1, 2, 4 s …. The first deletion is of the installed file.
	if most := 2 + int(time.Since(start)/shortestPause); deleted > most {
		t.Errorf("%d repairs in %v", deleted-1, time.Since(start))
	}
	if len(n.log.with("INFO", "path="+n.ConfTo, "reason=missing", "beside="+n.ConfTo+".cilium_bak")) != 1 || len(n.log.with("WARN", "longest=")) != 1 {
		t.Errorf("want one line for the first repair and one for all others:\n%s", n.log)
	}
}

// Another program undoes every repair at once for two hours, and then stops.
func TestPacer(t *testing.T) {
	log := &records{}
	k := keeper{target: target{to: "file"}, log: slog.New(log)}
	begin := time.Now()
	now, repairs := begin, 0
	for ; now.Sub(begin) < 2*time.Hour; now = now.Add(10 * time.Millisecond) {
		if p := (plan{reason: "missing"}); k.pace.delay(now, p) == 0 {
			k.report(p, now)
			repairs++
		}
	}
	if repairs < 115 || repairs > 130 || len(log.with("INFO")) != 1 || len(log.with("WARN")) != 1 {
		t.Errorf("%d repairs in two hours, log:\n%s\n%s", repairs, log.with("INFO"), log.with("WARN"))
	}
	if left := k.endEpisode(now); left < quietFor-longestPause || left > quietFor {
		t.Errorf("the episode ends after %v", left)
	}
	now = now.Add(quietFor)
	if k.endEpisode(now) != 0 || len(log.with("INFO", fmt.Sprint("repairs=", repairs))) != 1 {
		t.Errorf("the end of the episode is not logged:\n%s", log.with("INFO"))
	}
	if k.pace.delay(now, plan{reason: "missing"}) != 0 {
		t.Error("the first repair of a new episode is delayed")
	}
}

// An unusable file may be half written: it is repaired once it has stayed the same
// for stableFor.
func TestHalfWrittenFileMustBeStable(t *testing.T) {
	var p pacer
	now := time.Now()
	for _, text := range []string{"", `{"na`, `{"name":"`} {
		half := plan{reason: "unusable", awaitStable: true, found: []byte(text)}
		for _, after := range []time.Duration{0, stableFor / 2, stableFor - 1} {
			if p.delay(now.Add(after), half) == 0 {
				t.Errorf("%q is repaired after %v", text, after)
			}
		}
		now = now.Add(stableFor - 1)
	}
	if p.delay(now.Add(stableFor), plan{reason: "unusable", awaitStable: true, found: []byte(`{"name":"`)}) != 0 {
		t.Error("a stable unusable file is not repaired")
	}
}

// A plan is not carried out if the content of the file has changed since.
func TestPlanOutOfDate(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"made meanwhile": {"", istio}, "changed meanwhile": {"x", istio}, "deleted meanwhile": {list("mesh"), ""}, "emptied meanwhile": {"x", "empty"},
	} {
		n := newNode(t)
		put := func(text string) {
			_ = os.Remove(n.ConfTo)
			if text != "" {
				n.write(n.ConfTo, strings.TrimPrefix(text, "empty"))
			}
		}
		put(c.before)
		p, err := (&confFile{from: n.ConfFrom, to: n.ConfTo}).plan(true)
		n.must(err)
		put(c.after)
		if _, err := p.write(); err != errChanged || n.read(n.ConfTo) != strings.TrimPrefix(c.after, "empty") {
			t.Errorf("%s: %v, and the file is %q", name, err, n.read(n.ConfTo))
		}
	}
}

// A configuration counts as written although the record could not be written after it: the change is logged.
func TestRecordCannotBeWritten(t *testing.T) {
	n := newNode(t)
	target := target{to: n.ConfTo, plan: func(enforce bool) (plan, error) {
		p, err := (&confFile{from: n.ConfFrom, to: n.ConfTo}).plan(enforce)
		n.must(os.MkdirAll(filepath.Join(recordOf(n.ConfTo), "directory"), 0o755))
		return p, err
	}}
	k := &keeper{target: target, log: slog.New(n.log)}
	if _, err := k.pass(time.Now()); err == nil || n.read(n.ConfTo) != source || len(n.log.with("INFO", "reason=missing")) != 1 {
		t.Errorf("%v\n%s\n%v", err, n.read(n.ConfTo), n.log)
	}
}

// istio-cni replaces a *.conf by a *.conflist. The *.conf is not restored: runtimes
// would prefer it to the list.
func TestConvertedFileIsNotRestored(t *testing.T) {
	n := newNode(t)
	n.ConfTo = n.path("net.d/10-flannel.conf")
	n.write(n.ConfFrom, `{"name":"cbr0","type":"flannel"}`)
	if done, err := n.Install(slog.New(n.log)); err != nil || done[1].Result != "written" {
		t.Fatal(done, err)
	}
	n.must(os.Rename(n.ConfTo, n.ConfTo+".old"))
	n.write(n.ConfTo+"list", list("flannel", "istio-cni"))
	if done, err := n.Install(slog.New(n.log)); err != nil || done[1].Result != "unchanged" || n.read(n.ConfTo) != "" {
		t.Error(done, err)
	}
}

func TestInstallFails(t *testing.T) {
	n := newNode(t)
	n.write(n.ConfTo, istio)
	for _, bad := range []string{"", "{}", `{"name":"cbr0","plugins":[]}`} {
		n.write(n.ConfFrom, bad)
		done, err := n.Install(slog.New(n.log))
		if err == nil || len(done) != 1 || done[0].Path != n.PluginTo || n.read(n.ConfTo) != istio {
			t.Errorf("source %q: %v, %v", bad, done, err)
		}
	}
	n.write(n.ConfFrom, source)
	n.must(errors.Join(os.Remove(n.PluginFrom), os.Mkdir(n.PluginFrom, 0o755))) // without plugins
	if done, err := n.Install(slog.New(n.log)); err == nil || len(done) != 1 || done[0].Path != n.ConfTo {
		t.Errorf("no plugin: %v, %v", done, err)
	}
	n.must(os.Remove(n.ConfFrom))
	if _, err := n.Install(slog.New(n.log)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
