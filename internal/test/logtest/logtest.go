// Package logtest lets tests check what was logged independently of its
// wording: by the level and the attributes of records. The attribute cause says
// what happened.
package logtest

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"sync"
)

// Record is one line of slog's text handler: its values by key, including
// "time", "level" and "msg", and the whole line under the empty key. If a key
// occurs twice, the last value counts.
type Record map[string]string

// Records holds records in the order in which they were logged.
type Records []Record

// Parse returns the records in a text. Lines that are not records, such as the
// stack of a panic, are skipped.
func Parse(text string) Records {
	var rs Records
	for line := range strings.Lines(text) {
		if r, ok := parse(strings.TrimSpace(line)); ok {
			rs = append(rs, r)
		}
	}
	return rs
}

// parse returns the record in a line; false: it is none.
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
	_, ok := r["msg"] // all records of slog have one
	return r, ok
}

// next returns the key or value, which may be quoted, at the start of a text, and what comes
// behind its end ("=" or " "). ok is false if there is no such end; a value may be the last
// one of a line.
func next(text, end string) (value, rest string, ok bool) {
	if quoted, err := strconv.QuotedPrefix(text); err == nil {
		value, err = strconv.Unquote(quoted)
		rest, ended := strings.CutPrefix(text[len(quoted):], end)
		return value, rest, err == nil && (ended || rest == "")
	}
	value, rest, ended := strings.Cut(text, end)
	return value, rest, ended || end == " "
}

// With returns the records that have all of the attributes, given as key=value.
func (rs Records) With(attrs ...string) Records {
	var found Records
	for _, r := range rs {
		if r.has(attrs) {
			found = append(found, r)
		}
	}
	return found
}

// has reports whether the record has all of the attributes.
func (r Record) has(attrs []string) bool {
	for _, a := range attrs {
		key, want, _ := strings.Cut(a, "=")
		if got, ok := r[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// Naming returns the records whose value of a key contains all parts; see
// Names.
func (rs Records) Naming(key string, parts ...string) Records {
	var found Records
	for _, r := range rs {
		if Names(r[key], parts...) {
			found = append(found, r)
		}
	}
	return found
}

// Values returns the value of a key in each record; "" if a record does not
// have it.
func (rs Records) Values(key string) []string {
	values := make([]string, 0, len(rs))
	for _, r := range rs {
		values = append(values, r[key])
	}
	return values
}

// String returns the lines as they were logged.
func (rs Records) String() string {
	var text strings.Builder
	for _, r := range rs {
		text.WriteString(r[""] + "\n")
	}
	return text.String()
}

// Log collects log records, for code under test that gets a logger. The zero value is ready to
// use. Its methods may be called from any goroutine.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Logger returns a logger that writes records to l, from level Info on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Debug is Logger, with records from level Debug on.
func (l *Log) Debug() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Reset empties the log.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
}

// String returns the log so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// With returns the records so far that have all of the attributes, given as
// key=value.
func (l *Log) With(attrs ...string) Records { return Parse(l.String()).With(attrs...) }

// Count returns the number of records that have all of the attributes, given as
// key=value.
func (l *Log) Count(attrs ...string) int { return len(l.With(attrs...)) }

// Lines reports whether text has as many lines as want, and every line contains
// the words of the same line of want.
func Lines(text, want string) bool {
	lines, words := strings.Split(text, "\n"), strings.Split(want, "\n")
	for i, line := range lines {
		if len(lines) != len(words) || !Names(line, strings.Fields(words[i])...) {
			return false
		}
	}
	return true
}

// Names reports whether a text for people, such as an error, contains all
// parts. Parts should be names and values, which stay when the sentence around
// them is reworded.
func Names(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
