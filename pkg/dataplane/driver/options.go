package driver

import (
	"log/slog"

	"flannel/pkg/reconcile"
)

// Options of a driver.
type Options struct {
	Log      *slog.Logger
	Instance string // name of this flanneld among those of the host (package instance)
	// Report is called after each Add and Prune of a table, with the number of
	// desired entries and the changes. May be nil.
	Report   func(table string, entries int, done reconcile.Result)
	StateDir string // the subnet file's directory, for files that survive a crash
}

func (o Options) report(t Table, done reconcile.Result) {
	if o.Report != nil {
		o.Report(t.Name(), t.Len(), done)
	}
}
