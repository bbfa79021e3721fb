package dataplane

import (
	"log/slog"

	"flannel/pkg/reconcile"
)

// Options of New, which each operating system has in a file of its own.
type Options struct {
	Log *slog.Logger
	// Report is told after each Apply how many entries of ours a table shall hold and what was done to it. May be nil.
	Report func(table string, entries int, done reconcile.Result)
}
