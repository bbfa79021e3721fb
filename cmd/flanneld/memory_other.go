//go:build !linux

package main

// releaseProgram does nothing: Windows trims the working sets of processes itself.
func releaseProgram() {}
