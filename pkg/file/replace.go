package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"time"
)

// replaceWithin is how long Replace waits, on Windows, for a reader that has the
// file open. Readers usually need only a moment. After that, Replace fails, and the
// caller retries.
const replaceWithin = time.Second

// ErrDirGone means that a file cannot be written because its directory was deleted elsewhere
// and is mounted here: the host has deleted the source of a container's volume. The container
// then keeps the deleted directory, in which no file can be created, also when the host makes
// a new one. Only a new mount, as of a restarted container, leads to the new one. A process
// whose files are in such a directory therefore ends with this error.
var ErrDirGone = errors.New("the directory was deleted on the host, and only a restart of the container mounts a new one")

// Replace writes text to the file at path, with mode 0644. Readers see the old text
// or the new one, never a part. The directory must exist.
func Replace(path string, text []byte) error {
	return replace(path, bytes.NewReader(text), 0o644, true)
}

// withoutTemp replaces the name of a temporary file in an error by the name of the file
// that was to be written. The names of temporary files differ each time, but a repeated
// error must have the same text: callers log an error again only if its text has changed.
func withoutTemp(err error, path string) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: e.Op, Path: path, Err: e.Err}
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok { // of a rename, too
		return &fs.PathError{Op: e.Op, Path: path, Err: e.Err}
	}
	return err
}
