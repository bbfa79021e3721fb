package file

import "os"

// MkdirAll creates a directory, and missing ones above it, which everybody may read.
func MkdirAll(dir string) error { return os.MkdirAll(dir, 0o755) }

// checkOwner does nothing: only root can create files below /run and /etc.
func checkOwner(*os.File) error { return nil }

// OwnerUnknown returns nil: owners are not checked.
func OwnerUnknown(string) error { return nil }
