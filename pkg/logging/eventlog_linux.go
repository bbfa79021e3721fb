package logging

import "errors"

// OpenEventLog is only supported on Windows.
func OpenEventLog(string) (log EventLog, close func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}
