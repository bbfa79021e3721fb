// Package version knows what was built.
package version

import "runtime/debug"

// Version is set by the linker (-X flannel/pkg/version.Version=v1.2.3).
var Version = "dev"

// String is the version, with the Go version that built it.
func String() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return Version + " " + info.GoVersion
	}
	return Version
}
