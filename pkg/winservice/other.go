//go:build !windows

package winservice

import (
	"context"
	"errors"
	"io"
	"time"

	"flannel/pkg/logging"
)

// Started reports whether the service manager started this process: only Windows has services that know of it.
func Started([]string) bool { return false }

// OpenEventLog is of Windows.
func OpenEventLog() (log logging.EventLog, close func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}

// Run is of Windows.
func Run(time.Duration, func(context.Context) int) (int, error) { return 0, errors.ErrUnsupported }

// Settings: systemd's are read by those who want them.
func Settings() (command, env []string, err error) { return nil, nil, errors.ErrUnsupported }

// Control refuses: here systemd controls services.
func Control(context.Context, string, Config, io.Writer) error {
	return errors.New("service: this is for Windows; here systemd runs flanneld, see dist/flanneld.service")
}
