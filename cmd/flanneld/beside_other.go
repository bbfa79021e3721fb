//go:build !linux

package main

// daemonBeside returns nil: on Windows, the lock of the subnet file finds flanneld.
func (c *call) daemonBeside() error { return nil }
