package file

import "time"

// replaceWithin is how long Replace waits, on Windows, for a reader that has the
// file open. Readers usually need only a moment. After that, Replace fails, and the
// caller retries.
const replaceWithin = time.Second

// Replace writes text to the file at path, with mode 0644. Readers see the old text
// or the new one, never a part. The directory must exist.
func Replace(path string, text []byte) error { return replace(path, text, 0o644, true) }
