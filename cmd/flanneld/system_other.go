//go:build !windows

package main

// systemPath is where a file of the system is, given as on Linux.
func systemPath(path string) string { return path }
