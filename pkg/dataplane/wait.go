package dataplane

import "fmt"

// WaitError is the error of a pass that could not finish because the system
// needs time, not because something is wrong. The text stays the same for as
// long as the driver waits for the same thing, so that it is logged once.
// Cause stays the same when the text is reworded.
type WaitError struct {
	cause string
	err   error
}

func (w *WaitError) Error() string { return w.err.Error() }
func (w *WaitError) Unwrap() error { return w.err }

// Cause is the value of the attribute cause in the log.
func (w *WaitError) Cause() string { return w.cause }

// Waiting returns a WaitError "waiting for …".
func Waiting(cause, format string, args ...any) error {
	return &WaitError{cause, fmt.Errorf("waiting for "+format, args...)}
}
