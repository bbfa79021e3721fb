package logging

import (
	"bytes"
	"slices"
	"sync"
)

// maxRecent limits the lines that a Recent keeps, in bytes.
const maxRecent = 256 << 10

// Recent keeps the last lines of the log in memory, for a bundle: on a node without
// a log file, stderr may be out of reach. The zero Recent is empty.
type Recent struct {
	mu    sync.Mutex
	lines [][]byte // the oldest first
	size  int      // of lines, in bytes
}

// Write adds a line. It implements io.Writer for slog's handlers, which write one
// line at a time.
func (r *Recent) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, bytes.Clone(line))
	r.size += len(line)
	drop := 0
	for ; r.size > maxRecent; drop++ {
		r.size -= len(r.lines[drop])
	}
	r.lines = slices.Delete(r.lines, 0, drop)
	return len(line), nil
}

// Text returns the lines, the oldest first.
func (r *Recent) Text() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Join(r.lines, nil)
}
