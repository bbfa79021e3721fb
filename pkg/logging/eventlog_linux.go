package logging

import (
	"errors"
	"io"
	"log/slog"
)

// OpenEventLog is only supported on Windows.
func OpenEventLog(string) (stderr io.Writer, events slog.Handler, close func() error, err error) {
	return nil, nil, nil, errors.ErrUnsupported
}
