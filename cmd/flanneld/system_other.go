//go:build !windows

package main

// systemPath returns the path of a system file, given as on Linux.
func systemPath(path string) string { return path }
