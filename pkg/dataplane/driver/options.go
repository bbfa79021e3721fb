package driver

import (
	"log/slog"

	"flannel/pkg/reconcile"
)

// Options of a driver. Each takes what it has a use for.
type Options struct {
	Log      *slog.Logger
	Instance string // the name of this flanneld among those of the host (package instance)
	// Report is told after each Apply how many entries of ours a table shall hold and what was done to it. May be nil.
	Report   func(table string, entries int, done reconcile.Result)
	StateDir string // where what must survive a crash is written down: the subnet file's directory
}
