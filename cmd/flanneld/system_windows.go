package main

import "path/filepath"

// systemPath is where a file of the system is, given as on Linux: on C:, where the CNI plugin finds it, whatever the
// drive from which flanneld was started.
func systemPath(path string) string { return "C:" + filepath.FromSlash(path) }
