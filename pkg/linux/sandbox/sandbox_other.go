//go:build !linux

// Package sandbox drops permissions that a process does not need.
package sandbox

import "errors"

// NoNetwork is only supported on Linux: elsewhere the process keeps the network.
func NoNetwork() error { return errors.ErrUnsupported }
