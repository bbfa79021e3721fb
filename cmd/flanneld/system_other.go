//go:build !windows

package main

import (
	"context"
	"errors"
	"io"
)

// systemPath is where a file of the system is, given as on Linux.
func systemPath(path string) string { return path }

// serviceSettings: systemd's are read by those who want them.
func serviceSettings() (command, env []string, err error) { return nil, nil, errors.ErrUnsupported }

// isService: only Windows has services that know of it.
func isService([]string) bool { return false }

func runService(process) int { return exitUsage }

func controlService(context.Context, string, serviceConfig, io.Writer) error {
	return errors.New("service: this is for Windows; here systemd runs flanneld, see dist/flanneld.service")
}
