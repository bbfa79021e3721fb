package dataplane

import (
	"log/slog"
	"path/filepath"

	"flannel/pkg/reconcile"
)

// Options of New, which each operating system has in a file of its own.
type Options struct {
	Log      *slog.Logger
	Instance string // the name of this flanneld among those of the host (package instance)
	// Report is told after each Apply how many entries of ours a table shall hold and what was done to it. May be nil.
	Report func(table string, entries int, done reconcile.Result)

	// Windows only.
	StateDir string // where what must survive a crash is written down: the subnet file's directory
	Pace     Pace
}

// journalPath is the file of type journal.
func (o Options) journalPath() string { return filepath.Join(o.StateDir, "hns.json") }
