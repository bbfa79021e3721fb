// Package logtest lets tests assert on what was logged without its wording: on the level of a record and on its
// attributes, of which cause says what happened.
package logtest

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"sync"
)

// Record is one line of slog's text handler: values by key, among them "time", "level" and "msg", and at "" the whole
// line. The last of two attributes with the same key counts.
type Record map[string]string

// Records are records in the order in which they were logged.
type Records []Record

// Parse returns the records in a text. It passes over lines that are none, such as the stacks of a panic.
func Parse(text string) Records {
	var all Records
	for line := range strings.Lines(text) {
		if r, ok := parse(strings.TrimSpace(line)); ok {
			all = append(all, r)
		}
	}
	return all
}

func parse(line string) (Record, bool) {
	r := Record{"": line}
	for rest := line; rest != ""; rest = strings.TrimLeft(rest, " ") {
		key, after, ok := next(rest, "=")
		if !ok {
			return nil, false
		}
		r[key], rest, ok = next(after, " ")
		if !ok {
			return nil, false
		}
	}
	_, ok := r["msg"]
	return r, ok
}

// next cuts a key or value, which may be quoted, off a text.
func next(text, end string) (value, rest string, ok bool) {
	if quoted, err := strconv.QuotedPrefix(text); err == nil {
		value, err = strconv.Unquote(quoted)
		rest, ended := strings.CutPrefix(text[len(quoted):], end)
		return value, rest, err == nil && (ended || rest == "")
	}
	value, rest, ended := strings.Cut(text, end)
	return value, rest, ended || end == " "
}

// With returns the records that have all of the attributes, each given as key=value.
func (all Records) With(attrs ...string) Records {
	var found Records
	for _, r := range all {
		if r.has(attrs) {
			found = append(found, r)
		}
	}
	return found
}

func (r Record) has(attrs []string) bool {
	for _, a := range attrs {
		key, want, _ := strings.Cut(a, "=")
		if got, ok := r[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// Naming returns the records whose value at a key Names the parts.
func (all Records) Naming(key string, parts ...string) Records {
	var found Records
	for _, r := range all {
		if Names(r[key], parts...) {
			found = append(found, r)
		}
	}
	return found
}

// Values returns what each record has at a key, in their order; "" for one without it.
func (all Records) Values(key string) []string {
	values := make([]string, 0, len(all))
	for _, r := range all {
		values = append(values, r[key])
	}
	return values
}

// String returns the lines as they were logged.
func (all Records) String() string {
	var text strings.Builder
	for _, r := range all {
		text.WriteString(r[""] + "\n")
	}
	return text.String()
}

// Log keeps what is logged. The zero Log is empty; it is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Logger writes to l, from level Info on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Reset forgets all of it.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// With returns the records so far that have all of the attributes, each given as key=value.
func (l *Log) With(attrs ...string) Records { return Parse(l.String()).With(attrs...) }

// Count returns how many records there are that have all of the attributes, each given as key=value.
func (l *Log) Count(attrs ...string) int { return len(l.With(attrs...)) }

// Lines reports whether a text has as many lines as want, and each Names the words of its counterpart.
func Lines(text, want string) bool {
	lines, words := strings.Split(text, "\n"), strings.Split(want, "\n")
	for i, line := range lines {
		if len(lines) != len(words) || !Names(line, strings.Fields(words[i])...) {
			return false
		}
	}
	return true
}

// Names reports whether a text for people, such as an error, contains every one of these: names and values, which stay
// when the sentence around them is reworded.
func Names(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
