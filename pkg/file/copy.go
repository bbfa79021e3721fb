package file

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// Copy copies the file from to the file to, with this mode. Readers see the old content or the
// new one, never a part. Copy creates the directory if it is missing. Unlike Put it does
// not hold the content in memory, such as that of a program.
func Copy(from, to string, mode os.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // it was read
	return writeFrom(source, to, mode, true)
}

// IsCopy reports whether to is a regular file with this mode and the content of from. The
// error is about from. If to cannot be read, it is no copy.
func IsCopy(from, to string, mode os.FileMode) (bool, error) {
	source, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer source.Close() //nolint:errcheck // it was read
	info, err := os.Lstat(to)
	if err != nil || !info.Mode().IsRegular() || !hasMode(info, mode) {
		return false, nil
	}
	other, err := os.Open(to)
	if err != nil {
		return false, nil //nolint:nilerr // see above
	}
	defer other.Close() //nolint:errcheck // it was read
	return sameContent(source, other)
}

// sameContent compares what two readers have. The error is that of the first one.
func sameContent(first, second io.Reader) (bool, error) {
	const size = 64 << 10
	a, b := make([]byte, size), make([]byte, size)
	for {
		n, err := io.ReadFull(first, a)
		atEnd := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !atEnd {
			return false, err
		}
		m, err := io.ReadFull(second, b)
		switch {
		case !bytes.Equal(a[:n], b[:m]):
			return false, nil
		case atEnd: // the same if the second one has ended, too
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), nil
		case err != nil:
			return false, nil
		}
	}
}
