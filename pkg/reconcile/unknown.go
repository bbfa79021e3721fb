package reconcile

import "errors"

// Unknown marks err as one that leaves the state of the system unknown: the state
// could not be read, or a write got no answer. A pass with such an error deletes
// nothing (see IsUnknown), since it may depend on entries that were not read; it
// may still add entries. The answers that something does not exist, or that one
// entry is refused, are not to be marked. Unknown(nil) is nil.
func Unknown(err error) error {
	if err == nil || IsUnknown(err) {
		return err
	}
	return unknownError{err}
}

// IsUnknown reports whether Unknown marked err, or an error that err wraps or
// joins.
func IsUnknown(err error) bool {
	_, unknown := errors.AsType[unknownError](err)
	return unknown
}

type unknownError struct{ err error }

func (u unknownError) Error() string { return u.err.Error() }
func (u unknownError) Unwrap() error { return u.err }
