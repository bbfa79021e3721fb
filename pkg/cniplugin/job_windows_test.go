package cniplugin

import (
	"testing"
	"time"
)

// Killing the plugin kills its delegate.
func TestDelegateKilledWithPlugin(t *testing.T) {
	n := newNode(t)
	n.write("bin/ADD.hang", "")
	cmd := n.command("ADD", "pod1", "eth0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for n.read("bin/beat") == "" {
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the error is that it was killed
	for start := time.Now(); ; {
		before := n.read("bin/beat")
		time.Sleep(time.Second)
		if after := n.read("bin/beat"); before == after {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatal("the delegate is still running")
		}
	}
	if s := n.run("DEL", "pod1", "eth0"); s.err != nil || len(n.saved()) > 0 {
		t.Errorf("DEL after the kill: %+v, saved %v", s.err, n.saved())
	}
}
