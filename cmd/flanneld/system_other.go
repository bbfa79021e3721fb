//go:build !windows

package main

import "io"

// systemPath returns the path of a system file, given as on Linux.
func systemPath(path string) string { return path }

// enableSequences does nothing: terminals interpret control sequences.
func enableSequences(io.Writer) (restore func(), err error) { return func() {}, nil }
