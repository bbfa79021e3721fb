package reconcile

import "errors"

// Unknown marks err as one after which it is not known what the system holds: it could not be read, or a write got no
// answer. What was not seen may be there and needed, so a pass with such an error deletes nothing (see IsUnknown);
// what is missing may still be added. An error about one entry, or one that says that something does not exist, is
// not of this kind. nil stays nil.
func Unknown(err error) error {
	if err == nil || IsUnknown(err) {
		return err
	}
	return unknownError{err}
}

// IsUnknown reports whether err is, wraps or joins one that Unknown marked.
func IsUnknown(err error) bool {
	var unknown unknownError
	return errors.As(err, &unknown)
}

type unknownError struct{ err error }

func (u unknownError) Error() string { return u.err.Error() }
func (u unknownError) Unwrap() error { return u.err }
