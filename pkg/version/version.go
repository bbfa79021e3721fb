// Package version knows what was built.
package version

import (
	"fmt"
	"runtime"
)

// Set by the linker (-X flannel/pkg/version.Version=v1.2.3).
var (
	Version = "dev"
	Commit  string // hexadecimal; "" if it was built without
)

// String is the version, with the commit and the Go version that built it.
func String() string {
	if Commit == "" {
		return Version + " " + runtime.Version()
	}
	return fmt.Sprintf("%s (commit %.12s) %s", Version, Commit, runtime.Version())
}
