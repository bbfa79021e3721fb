package install

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// keptWhileOpen tests that the installed plugin stays while another program has its source open
// for writing, so that the source cannot be started. Both are executable files. Linux 6.11 and
// some later releases start such a file: there the source stays open, and the caller's next
// installation must have the same result as after it was closed.
func (n *node) keptWhileOpen() {
	n.t.Helper()
	before := n.read(n.PluginTo)
	f, err := os.OpenFile(n.PluginFrom, os.O_WRONLY, 0)
	n.must(err)
	n.t.Cleanup(func() { _ = f.Close() }) // nothing was written
	if _, err := identify(n.PluginFrom); !errors.Is(err, errNotNow) && runtime.GOOS == "linux" {
		n.t.Log("this system starts a program that is open for writing:", err)
		return
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if done, err := n.Install(slog.New(n.log)); err != nil || done[0].Result != "left alone" || done[0].Reason == "" {
		n.t.Errorf("installed: %+v, %v", done, err)
	}
	targets, err := n.plugins()
	n.must(err)
	k := &keeper{target: targets[0], log: slog.New(n.log)}
	if _, err := k.pass(time.Now()); !errors.Is(err, errNotNow) {
		n.t.Error("kept:", err)
	}
	if n.read(n.PluginTo) != before {
		n.t.Error("the installed plugin was replaced")
	}
}

// A plugin is kept until its source can be started. If that is not a program, there is nothing to compare.
func TestKeptUntilSourceIsAsked(t *testing.T) {
	n := newNode(t)
	n.ConfFrom, n.PluginFrom, n.PluginTo = "", n.path("flannel.exe"), n.path("bin/flannel.exe") // Windows starts no other files
	n.program(n.PluginFrom, "a program")
	n.program(n.PluginTo, "another program")
	n.keptWhileOpen()
	if done, err := n.Install(slog.New(n.log)); err != nil || done[0].Result != "written" {
		t.Errorf("%+v, %v", done, err)
	}
}

// A plugin that is deleted while it is compared is not taken for one that cannot be run, or for a symbolic link.
func TestDeletedWhileCompared(t *testing.T) {
	n := newNode(t)
	deleted := n.path("bin/flannel.exe")
	if kept, unusable, err := comparePlugins(n.PluginFrom, deleted, ""); kept != "" || unusable != nil || !errors.Is(err, errChanged) {
		t.Errorf("%q, %x, %v", kept, unusable, err)
	}
	if _, err := identify(deleted); !errors.Is(err, errChanged) {
		t.Error("asked:", err)
	}
}

func TestReasonToKeep(t *testing.T) {
	upTo := func(n int) []string {
		return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "2.0.0"}[:n]
	}
	ours := identity{upTo(7), "flanneld", "v1.3.0"}
	for name, c := range map[string]struct {
		ours, installed identity
		kept            string
		version         string // of the configuration
	}{
		"of 2021":                          {ours, identity{upTo(5), "", ""}, "", ""},
		"upstream":                         {ours, identity{upTo(6), "", ""}, "another maker", ""},
		"upstream, same versions":          {ours, identity{upTo(7), "", ""}, "another maker", ""},
		"upstream, for 1.1.0":              {ours, identity{upTo(6), "", ""}, "", "1.1.0"},
		"upstream, for 1.0.0":              {ours, identity{upTo(6), "", ""}, "another maker", "1.0.0"},
		"upstream, for 2.0.0":              {ours, identity{upTo(6), "", ""}, "nor does ours", "2.0.0"},
		"newer specification, for 1.1.0":   {ours, identity{[]string{"1.0.0", "2.0.0"}, "", ""}, "which ours does not, and does not support CNI 1.1.0", "1.1.0"},
		"of a vendor":                      {ours, identity{upTo(5), "acme", "v9.0.0"}, "another maker", ""},
		"of a vendor, for 1.1.0":           {ours, identity{upTo(6), "acme", "v9.0.0"}, "does not support CNI 1.1.0", "1.1.0"},
		"of a vendor, for 1.0.0":           {ours, identity{upTo(6), "acme", "v9.0.0"}, "another maker", "1.0.0"},
		"newer specification":              {ours, identity{upTo(8), "flanneld", "v1.3.0"}, "2.0.0", ""},
		"ours, older":                      {ours, identity{upTo(7), "flanneld", "v1.2.9"}, "", ""},
		"ours, newer":                      {ours, identity{upTo(7), "flanneld", "v1.10.0"}, "v1.10.0", ""},
		"ours, development build":          {ours, identity{upTo(7), "flanneld", "dev"}, "", ""},
		"downgrade of the image":           {identity{upTo(5), "", ""}, ours, "1.0.0", ""},
		"host-local":                       {identity{upTo(7), "", ""}, identity{upTo(7), "", ""}, "", ""},
		"host-local, newer":                {identity{upTo(6), "", ""}, identity{upTo(7), "", ""}, "1.1.0", ""},
		"development build over a release": {identity{upTo(7), "flanneld", "dev"}, identity{upTo(7), "flanneld", "v1.0.0"}, "", ""},
	} {
		if kept := c.ours.reasonToKeep(c.installed, c.version); (kept == "") != (c.kept == "") || !strings.Contains(kept, c.kept) ||
			strings.Contains(kept, "support CNI") != (kept != "" && c.version != "" && !slices.Contains(c.installed.Supported, c.version)) {
			t.Errorf("%s: %q, want %q", name, kept, c.kept)
		}
	}
}

func TestNewer(t *testing.T) {
	order := []string{"v0.9.1", "v1.2.3-rc.1", "v1.2.3", "v1.2.3-4-gabcdef0", "v1.2.10", "v1.10.0"}
	for i, a := range order {
		for j, b := range order {
			if newer(a, b) != (i > j) {
				t.Errorf("newer(%s, %s) = %v", a, b, newer(a, b))
			}
		}
		for _, other := range []string{"", "dev", "abcdef0-dirty", "v1", "v1.2.x", "1.2.3", "v-1.2.3", "v1.2.3.4"} {
			if newer(a, other) || newer(other, a) {
				t.Errorf("newer orders %s and %q", a, other)
			}
		}
	}
	if newer("v1.2.3-dirty", "v1.2.3") {
		t.Error("v1.2.3-dirty is newer than v1.2.3")
	}
}
