package install

import (
	"errors"
	"log/slog"
	"testing"

	"golang.org/x/sys/windows"
)

// While another program has the source open and does not share it, the installed plugin is kept.
func TestSourceIsNotShared(t *testing.T) {
	n := newNode(t)
	n.program(n.PluginTo, "another program")
	n.ConfFrom = ""
	path, err := windows.UTF16PtrFromString(n.PluginFrom)
	n.must(err)
	h, err := windows.CreateFile(path, windows.GENERIC_READ, 0, nil, windows.OPEN_EXISTING, 0, 0) // shares nothing
	n.must(err)
	defer windows.CloseHandle(h) //nolint:errcheck // nothing was written
	if done, err := n.Install(slog.New(n.log)); err != nil || done[0].Result != "left alone" || n.read(n.PluginTo) != "another program" {
		t.Errorf("%+v, %v\n%s", done, err, n.read(n.PluginTo))
	}
	if _, _, err := comparePlugins(n.PluginFrom, n.PluginTo, ""); !errors.Is(err, errNotNow) {
		t.Error("compared:", err)
	}
}
