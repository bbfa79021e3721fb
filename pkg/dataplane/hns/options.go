package hns

import (
	"path/filepath"

	"flannel/pkg/dataplane/driver"
)

// Options of New.
type Options struct {
	driver.Options
	Pace Pace
}

// journalPath is the file of type journal.
func (o Options) journalPath() string { return filepath.Join(o.StateDir, "hns.json") }
