package file

import "time"

// replaceWithin is how long a reader may keep a file from being replaced, which it can on Windows. Readers take a
// moment; who holds a file for longer is told of in the error, and the caller tries again in its own time.
const replaceWithin = time.Second

// Replace makes the file at path hold text, mode 0644: readers see the old text or the new one, never a part.
func Replace(path string, text []byte) error { return replace(path, text, 0o644, true) }
