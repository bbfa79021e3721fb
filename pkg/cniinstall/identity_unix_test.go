//go:build !windows

package cniinstall

import (
	"log/slog"
	"os"
	"strings"
	"testing"
)

const (
	oursNow   = "#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\",\"1.1.0\"],\"implementation\":\"flanneld\",\"release\":\"v1.3.0\"}'\n"
	flannels  = "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\"]}'\n"
	of2021    = "#!/bin/sh\necho '{\"cniVersion\":\"0.4.0\",\"supportedVersions\":[\"0.4.0\"]}'\n"
	elsewhere = "#!/of/another/distribution\n"
	silent    = "#!/bin/sh\nexit 0\n"
)

func (n *node) program(path, text string) {
	n.t.Helper()
	n.write(path, text)
	n.must(os.Chmod(path, 0o755))
}

// A plugin that is newer, or of another maker, stays until it is told otherwise.
func TestOtherPluginsStay(t *testing.T) {
	for name, c := range map[string]struct {
		there string
		kept  string
	}{
		"flannel's": {flannels, "another maker"}, "newer": {strings.Replace(oursNow, "v1.3.0", "v1.4.0", 1), "v1.4.0"},
		"not for this container": {elsewhere, "cannot be run"}, "older": {strings.Replace(oursNow, "v1.3.0", "v1.2.0", 1), ""},
		"of 2021": {of2021, ""}, "silent": {silent, ""}, "garbage": {"\x7fELF", ""},
	} {
		n := newNode(t)
		n.program(n.PluginFrom, oursNow)
		n.program(n.PluginTo, c.there)
		n.ConfFrom = ""
		done, err := n.Install(slog.New(n.log))
		n.must(err)
		want := oursNow
		if c.kept != "" {
			want = c.there
		}
		if r := done[0]; n.read(n.PluginTo) != want || (r.Result == "written") != (c.kept == "") || !strings.Contains(r.Reason, c.kept) {
			t.Errorf("%s: %+v\n%s", name, r, n.read(n.PluginTo))
		}
		n.ReplacePlugin = true
		done, err = n.Install(slog.New(n.log))
		n.must(err)
		if n.read(n.PluginTo) != oursNow || done[0].Reason != "" {
			t.Errorf("%s, told to replace it: %+v", name, done)
		}
	}
}

// While Keep runs, another maker's plugin may come and stays, however slowly it is written; ours comes back when it goes
// or breaks.
func TestKeepLeavesOthersPlugins(t *testing.T) {
	n := newNode(t)
	n.program(n.PluginFrom, oursNow)
	n.ConfFrom = ""
	n.keep()
	n.until("installed", func() bool { return n.read(n.PluginTo) == oursNow })
	n.must(os.WriteFile(n.PluginTo, []byte(flannels[:30]), 0o755)) // as cp does
	n.must(os.WriteFile(n.PluginTo, []byte(flannels), 0o755))
	n.until("said", func() bool { return len(n.log.with("left another CNI plugin", "another maker")) == 1 })
	if n.read(n.PluginTo) != flannels {
		t.Error("it is replaced")
	}
	n.must(os.Remove(n.PluginTo))
	n.until("back", func() bool { return n.read(n.PluginTo) == oursNow })
	n.write(n.PluginTo, "\x7fELF")
	n.until("whole again", func() bool { return n.read(n.PluginTo) == oursNow })
}
