package dataplane

import (
	"log/slog"

	"flannel/pkg/reconcile"
)

// Options of a driver.
type Options struct {
	Log      *slog.Logger
	Instance string // name of this flanneld among those of the host (cmd/flanneld/instance.go)
	// Report is called after each Add and Prune of a table, with the number of
	// desired entries and the changes. Several goroutines may call it. May be nil.
	Report   func(table string, entries int, done reconcile.Result)
	Repairs  *Repairs // may be nil
	StateDir string   // the subnet file's directory, for files that survive a crash
	// PodResults is the directory in which the CNI library keeps the results of plugins, on
	// Windows; "": not known.
	PodResults string
	KeyFile    string // WireGuard's private key; "": flannel's
	// Tunnels is called with what WireGuard's devices count, each time that they are read.
	// May be nil.
	Tunnels func(TunnelSummary)
}
