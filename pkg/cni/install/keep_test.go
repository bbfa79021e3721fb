package install

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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

// A directory that the keeper has made may be deleted before the watch has noticed it: the keeper looks again.
func TestDeletedAfterWrite(t *testing.T) {
	n := newNode(t)
	k, now := &keeper{target: n.conf(), log: slog.New(n.log)}, time.Now()
	for _, what := range []string{"installed", "restored", "restored again"} {
		next, err := k.pass(now)
		n.must(err)
		if n.read(n.ConfTo) == "" { // the pause before it
			now = now.Add(next)
			next, err = k.pass(now)
			n.must(err)
		}
		if n.read(n.ConfTo) != source || next <= 0 || next > time.Minute {
			t.Errorf("%s: next pass after %v\n%s", what, next, n.read(n.ConfTo))
		}
		n.must(os.RemoveAll(n.path("net.d")))
		now = now.Add(next)
	}
}

// seen waits until Keep has seen that the configuration is text.
func (n *node) seen(text string) bool {
	if n.read(n.ConfTo) != text {
		return false
	}
	// Keep writes a missing record after it has read the configuration. The pass that writes the first one may have read
	// the former configuration, but not the pass that writes the second one.
	for range 2 {
		if os.Remove(recordOf(n.ConfTo)) != nil { // on Windows, while somebody reads it
			return false
		}
		n.write(n.ConfFrom, source)
		start := time.Now()
		for n.read(recordOf(n.ConfTo)) != source {
			if time.Since(start) > time.Minute { // the caller tries again
				return false
			}
			time.Sleep(time.Millisecond)
		}
	}
	return true
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
