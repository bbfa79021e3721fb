package main

import "path/filepath"

// systemPath converts the Linux path of a system file. The file is on drive C:,
// where the CNI plugin looks for it, even if flanneld was started from another
// drive.
func systemPath(path string) string { return "C:" + filepath.FromSlash(path) }
