//go:build !windows

package service

import (
	"context"
	"errors"
	"io"
	"time"

	"flannel/pkg/logging"
)

// Started reports false: only Windows has the service manager.
func Started([]string) bool { return false }

// OpenEventLog is only supported on Windows.
func OpenEventLog() (log logging.EventLog, close func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}

// Run is only supported on Windows.
func Run(time.Duration, func(context.Context) int) (int, error) { return 0, errors.ErrUnsupported }

// Settings is only supported on Windows.
func Settings() (command, env []string, err error) { return nil, nil, errors.ErrUnsupported }

// Control is only supported on Windows.
func Control(context.Context, string, Config, io.Writer) error {
	return errors.New("service: only supported on Windows; on Linux, systemd runs flanneld, see dist/flanneld.service")
}
