package plugin

import (
	"testing"
	"time"

	"flannel/internal/test/eventually"
)

// Killing the plugin kills its delegate.
func TestDelegateKilledWithPlugin(t *testing.T) {
	n := newNode(t)
	n.write("bin/ADD.hang", "")
	cmd := n.command("ADD", "pod1", "eth0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the delegate runs", func() bool { return n.read("bin/beat") != "" })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the error is that it was killed
	eventually.True(t, "the delegate has ended", func() bool {
		before := n.read("bin/beat")
		time.Sleep(time.Second) // far longer than between two beats
		return n.read("bin/beat") == before
	})
	if s := n.run("DEL", "pod1", "eth0"); s.err != nil || len(n.saved()) > 0 {
		t.Errorf("DEL after the kill: %+v, saved %v", s.err, n.saved())
	}
}
