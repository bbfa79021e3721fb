//go:build !linux

package main

import "log/slog"

// daemonBeside returns nil: on Windows, the lock of the subnet file finds flanneld.
func (c *call) daemonBeside() error { return nil }

// warnOfSameIDs does nothing: only Linux has nexthop objects.
func (options) warnOfSameIDs(*slog.Logger) {}
