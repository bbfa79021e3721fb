package install

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

const (
	oursNow  = "#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\",\"1.1.0\"],\"implementation\":\"flanneld\",\"release\":\"v1.3.0\"}'\n"
	upstream = "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\"]}'\n"
	of2021   = "#!/bin/sh\necho '{\"cniVersion\":\"0.4.0\",\"supportedVersions\":[\"0.4.0\"]}'\n"
	noLoader = "#!/of/another/distribution\n"
	silent   = "#!/bin/sh\nexit 0\n"
	hangs    = "#!/bin/sh\nexec sleep 1000\n"
)

// A plugin that is newer, or of another maker, is kept unless ReplacePlugin is set.
func TestOtherPluginsAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		installed string
		kept      string
	}{
		"upstream": {upstream, "another maker"}, "newer": {strings.Replace(oursNow, "v1.3.0", "v1.4.0", 1), "v1.4.0"},
		"not for this container": {noLoader, "cannot be run"}, "older": {strings.Replace(oursNow, "v1.3.0", "v1.2.0", 1), ""},
		"of 2021": {of2021, ""}, "silent": {silent, ""}, "garbage": {"\x7fELF", ""},
	} {
		n := newNode(t)
		n.program(n.PluginFrom, oursNow)
		n.program(n.PluginTo, c.installed)
		n.ConfFrom = ""
		done, err := n.Install(slog.New(n.log))
		n.must(err)
		want := oursNow
		if c.kept != "" {
			want = c.installed
		}
		if r := done[0]; n.read(n.PluginTo) != want || (r.Result == "written") != (c.kept == "") || !strings.Contains(r.Reason, c.kept) {
			t.Errorf("%s: %+v\n%s", name, r, n.read(n.PluginTo))
		}
		n.ReplacePlugin = true
		done, err = n.Install(slog.New(n.log))
		n.must(err)
		if n.read(n.PluginTo) != oursNow || done[0].Reason != "" {
			t.Errorf("%s, with ReplacePlugin: %+v", name, done)
		}
	}
}

// A plugin without a name of its maker is replaced when the configuration needs a CNI version that only ours supports: no pod
// could start. Keep notices when that begins. That of a vendor is kept, and the reason says it.
func TestPluginForTheConfiguration(t *testing.T) {
	with := func(version string) string {
		return strings.Replace(source, `"cniVersion": "0.3.1"`, `"cniVersion": "`+version+`"`, 1)
	}
	vendor := strings.Replace(upstream, "}'", ",\"implementation\":\"acme\",\"release\":\"v9.0.0\"}'", 1)
	for _, c := range []struct {
		installed, version string
		written            bool
		reason             string
	}{
		{upstream, "0.3.1", false, "does not support CNI 0.3.1"}, {upstream, "1.0.0", false, "another maker"}, {upstream, "1.1.0", true, ""},
		{vendor, "1.0.0", false, "another maker"}, {vendor, "1.1.0", false, "does not support CNI 1.1.0"},
	} {
		n := newNode(t)
		n.program(n.PluginFrom, oursNow)
		n.program(n.PluginTo, c.installed)
		n.write(n.ConfFrom, with(c.version))
		done, err := n.Install(slog.New(n.log))
		n.must(err)
		want := c.installed
		if c.written {
			want = oursNow
		}
		if r := done[0]; (r.Result == "left alone") == c.written || n.read(n.PluginTo) != want || !strings.Contains(r.Reason, c.reason) || done[1].Result != "written" {
			t.Errorf("%s: %+v\n%s", c.version, done, n.read(n.PluginTo))
		}
	}
	n := newNode(t)
	n.program(n.PluginFrom, oursNow)
	n.program(n.PluginTo, upstream)
	n.write(n.ConfFrom, with("1.0.0"))
	n.keep()
	n.until("left in place", func() bool { return len(n.log.with("WARN", "path="+n.PluginTo)) == 1 })
	n.replace(n.ConfFrom, with("1.1.0"))
	n.until("replaced", func() bool { return n.read(n.PluginTo) == oursNow })
}

// A symbolic link is compared as the file that it leads to, and only the link is replaced. A link to a file that only the
// node may have is kept; what is no file is replaced.
func TestLinkedPlugins(t *testing.T) {
	for name, c := range map[string]struct {
		make func(path string) error
		kept string
	}{
		"upstream":  {func(path string) error { return os.WriteFile(path, []byte(upstream), 0o755) }, "another maker"},
		"of 2021":   {func(path string) error { return os.WriteFile(path, []byte(of2021), 0o755) }, ""},
		"missing":   {func(string) error { return nil }, "does not exist"},
		"FIFO":      {func(path string) error { return syscall.Mkfifo(path, 0o755) }, ""},
		"directory": {func(path string) error { return os.Mkdir(path, 0o755) }, ""},
	} {
		n := newNode(t)
		n.program(n.PluginFrom, oursNow)
		n.ConfFrom = ""
		target := n.path("multicall")
		n.must(errors.Join(os.Mkdir(n.path("bin"), 0o755), os.Symlink(target, n.PluginTo), c.make(target)))
		before, _ := os.Lstat(target) // nil if it is missing
		done, err := n.Install(slog.New(n.log))
		n.must(err)
		after, _ := os.Lstat(target)
		link, _ := os.Readlink(n.PluginTo) // "" if it is not a link
		if (link == target) != (c.kept != "") || (done[0].Reason != "") != (c.kept != "") || !strings.Contains(done[0].Reason, c.kept) {
			t.Errorf("%s: %+v, link to %q", name, done[0], link)
		}
		if before != nil && !os.SameFile(before, after) {
			t.Errorf("%s: the target of the link was replaced", name)
		}
		n.ReplacePlugin = true
		if done, err := n.Install(slog.New(n.log)); err != nil || n.read(n.PluginTo) != oursNow {
			t.Errorf("%s, with ReplacePlugin: %+v, %v", name, done, err)
		}
	}
}

// Another program is writing a plugin when Install starts: the plugin is compared once it is whole. It stays if it is
// open for writing for longer.
func TestPluginIsBeingWritten(t *testing.T) {
	for name, c := range map[string]struct {
		text  string // before the end of writing
		holds bool   // the file open for writing
	}{"half": {upstream[:30], false}, "open": {upstream, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.program(n.PluginFrom, oursNow)
				n.program(n.PluginTo, c.text)
				n.ConfFrom = ""
				writer, err := os.OpenFile(n.PluginTo, os.O_WRONLY, 0)
				n.must(err)
				if c.holds {
					done, err := n.Install(slog.New(n.log))
					n.must(err)
					if done[0].Result != "left alone" || n.read(n.PluginTo) != upstream {
						t.Errorf("open: %+v, %v\n%s", done, err, n.read(n.PluginTo))
					}
				} else {
					n.must(writer.Close())
				}
				done, err := n.installMeanwhile(func() {
					if n.read(n.PluginTo) != c.text {
						t.Error("replaced at once")
					}
					if c.holds {
						n.must(writer.Close())
					} else {
						n.program(n.PluginTo, upstream)
					}
				})
				if err != nil || n.read(n.PluginTo) != upstream || !strings.Contains(done[0].Reason, "another maker") {
					t.Errorf("%+v, %v\n%s", done, err, n.read(n.PluginTo))
				}
			})
		})
	}
}

// Keep does not replace a plugin of another maker that is installed while it runs,
// even if it is written slowly. It restores ours if that plugin is removed or
// broken.
func TestKeepLeavesOtherPlugins(t *testing.T) {
	n := newNode(t)
	n.program(n.PluginFrom, oursNow)
	n.ConfFrom = ""
	n.keep()
	n.until("installed", func() bool { return n.read(n.PluginTo) == oursNow })
	n.must(os.WriteFile(n.PluginTo, []byte(upstream[:30]), 0o755)) // half written, as by cp
	n.must(os.WriteFile(n.PluginTo, []byte(upstream), 0o755))
	n.until("logged", func() bool { return len(n.log.with("left another CNI plugin", "another maker")) == 1 })
	if n.read(n.PluginTo) != upstream {
		t.Error("the plugin of another maker was replaced")
	}
	n.must(os.Remove(n.PluginTo))
	n.until("restored after removal", func() bool { return n.read(n.PluginTo) == oursNow })
	n.write(n.PluginTo, "\x7fELF")
	n.until("restored after damage", func() bool { return n.read(n.PluginTo) == oursNow })
}

// A plugin that answers is kept as well while its source cannot be started.
func TestKeptUntilCompared(t *testing.T) {
	n := newNode(t)
	n.program(n.PluginFrom, oursNow)
	n.program(n.PluginTo, upstream)
	n.ConfFrom = ""
	n.keptWhileOpen()
	if done, err := n.Install(slog.New(n.log)); err != nil || !strings.Contains(done[0].Reason, "another maker") {
		t.Errorf("%+v, %v", done, err)
	}
}

// If the source is ended by a signal, as when memory is short, the installed plugin is kept. If only the installed plugin is,
// it is broken.
func TestEndedBySignal(t *testing.T) {
	const killed = "#!/bin/sh\nkill -9 $$\n"
	for name, c := range map[string]struct{ source, installed, want string }{
		"source":    {killed, upstream, upstream},
		"both":      {killed + "# ours", killed, killed},
		"installed": {oursNow, killed, oursNow},
	} {
		n := newNode(t)
		n.program(n.PluginFrom, c.source)
		n.program(n.PluginTo, c.installed)
		n.ConfFrom = ""
		done, err := n.Install(slog.New(n.log))
		n.must(err)
		if (done[0].Result == "left alone") != (c.want == c.installed) || n.read(n.PluginTo) != c.want {
			t.Errorf("%s: %+v\n%s", name, done, n.read(n.PluginTo))
		}
	}
}

// While no file can be opened, the installed plugin is kept. If there is none, or it is to be replaced, Install fails.
func TestNoFileDescriptor(t *testing.T) {
	n := newNode(t)
	n.program(n.PluginFrom, oursNow)
	n.program(n.PluginTo, upstream)
	n.ConfFrom = ""
	missing, replacing := n.Files, n.Files
	missing.PluginTo, replacing.ReplacePlugin = n.path("missing"), true
	var limit syscall.Rlimit
	n.must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	n.must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}))
	done, failed := n.Install(slog.New(n.log))
	_, _, compared := comparePlugins(n.PluginFrom, n.PluginTo, "")
	_, whenMissing := missing.Install(slog.New(n.log))
	_, whenReplacing := replacing.Install(slog.New(n.log))
	n.must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	if failed != nil || done[0].Result != "left alone" || done[0].Reason == "" || n.read(n.PluginTo) != upstream {
		t.Errorf("%+v, %v\n%s", done, failed, n.read(n.PluginTo))
	}
	if !errors.Is(compared, errNotNow) || !errors.Is(compared, syscall.EMFILE) {
		t.Error("compared:", compared)
	}
	if !errors.Is(whenMissing, syscall.EMFILE) || !errors.Is(whenReplacing, syscall.EMFILE) {
		t.Errorf("missing: %v; to be replaced: %v", whenMissing, whenReplacing)
	}
}

// If the source does not answer in time either, the machine may be slow: the installed plugin is kept.
func TestNoAnswerOfBothInTime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.program(n.PluginFrom, hangs+"# ours")
	n.program(n.PluginTo, hangs)
	n.ConfFrom = ""
	if done, err := n.Install(slog.New(n.log)); err != nil || done[0].Result != "left alone" || n.read(n.PluginTo) != hangs {
		t.Errorf("%+v, %v\n%s", done, err, n.read(n.PluginTo))
	}
}

// If the source answers, an installed plugin that does not answer in time is replaced.
func TestNoAnswerInTime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.program(n.PluginFrom, oursNow)
	n.program(n.PluginTo, hangs)
	n.ConfFrom = ""
	n.until("replaced", func() bool { // a busy machine may need more than one attempt
		done, err := n.Install(slog.New(n.log))
		n.must(err)
		return done[0].Result == "written" && n.read(n.PluginTo) == oursNow
	})
}
