package install

import (
	"log/slog"
	"testing"
)

// Some programs give a file such a name until it is whole.
func TestFilesWithADotAreNotPlugins(t *testing.T) {
	n := newNode(t)
	n.ConfFrom, n.PluginFrom, n.PluginTo = "", n.path("plugins"), n.path("bin")
	n.write(n.path("plugins/.flannel.x7Gq2"), "half a plug")
	if done, err := n.Install(slog.New(n.log)); err == nil || len(done) > 0 {
		t.Errorf("without other files: %+v, %v", done, err)
	}
	n.write(n.path("plugins/flannel"), "a program")
	if done, err := n.Install(slog.New(n.log)); err != nil || len(done) != 1 || done[0].Path != n.path("bin/flannel") {
		t.Errorf("%+v, %v", done, err)
	}
}
