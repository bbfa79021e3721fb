package logging

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

// eventLog is the event log of Windows, in which services log.
type eventLog interface {
	Warning(id uint32, text string) error
	Error(id uint32, text string) error
}

const (
	eventID  = 1      // of all our events; the message file (of eventcreate.exe) shows our text for IDs from 1 to 1000
	eventMax = 30_000 // bytes; Windows accepts 31,839 characters
)

// newEvents returns a handler that writes records of level Warn and above to the
// event log.
func newEvents(log eventLog) slog.Handler {
	// The embedded handler formats into e.text, which Handle empties before each record.
	e := &events{log: log, text: new(bytes.Buffer), mu: new(sync.Mutex)}
	e.Handler = slog.NewTextHandler(e.text, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime})
	return e
}

// withoutTime removes the time and the level, which each event has anyway.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}

// events formats records with the embedded handler and writes them to the event log.
// The handlers that WithAttrs and WithGroup return share text and mu.
type events struct {
	slog.Handler // writes into text
	log          eventLog
	text         *bytes.Buffer
	mu           *sync.Mutex // protects text
}

// Handle writes one event for a record, with its level as the type of the event.
func (e *events) Handle(ctx context.Context, r slog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text.Reset()
	if err := e.Handler.Handle(ctx, r); err != nil {
		return err
	}
	text := eventText(e.text.Bytes())
	if r.Level < slog.LevelError {
		return e.log.Warning(eventID, text)
	}
	return e.log.Error(eventID, text)
}

// eventText returns the text of an event: without the line's end, and cut at eventMax.
func eventText(line []byte) string {
	line = bytes.TrimSpace(line)
	// The cut may be within a character.
	return strings.ToValidUTF8(string(line[:min(len(line), eventMax)]), "")
}

// WithAttrs implements slog.Handler. The method of the embedded handler would return
// a handler that writes into text only.
func (e *events) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &events{e.Handler.WithAttrs(attrs), e.log, e.text, e.mu}
}

// WithGroup implements slog.Handler; see WithAttrs.
func (e *events) WithGroup(name string) slog.Handler {
	return &events{e.Handler.WithGroup(name), e.log, e.text, e.mu}
}

// eventErrors is an io.Writer that writes each text as one event of type Error. It is
// the stderr of a service, where a wrong command line is reported; the log of a service
// goes to the handler of newEvents.
type eventErrors struct{ log eventLog }

// Write implements io.Writer.
func (w eventErrors) Write(p []byte) (int, error) {
	return len(p), w.log.Error(eventID, eventText(p))
}
