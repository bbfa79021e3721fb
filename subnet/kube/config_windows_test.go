package kube

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/filetest"
	"flannel/internal/test/logtest"
)

// A configuration of somebody else is refused until it has another owner.
func TestForeignConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net-conf.json")
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	filetest.GiveAway(t, path)
	got := make(chan string, 1)
	var log logtest.Log
	m := &Manager{log: log.Logger()}
	m.o.NetConf = path
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.WatchConfig(ctx, func(raw []byte) { got <- string(raw) }) }()
	eventually.True(t, "there is no configuration", func() bool { return log.Count("cause="+causeNoConfig) > 0 })
	select {
	case raw := <-got:
		t.Errorf("configured with %s", raw)
	default:
	}
	filetest.TakeBack(t, path)
	if raw := <-got; raw != "{}" {
		t.Error(raw)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
