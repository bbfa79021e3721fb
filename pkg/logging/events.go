package logging

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

// EventLog is a system's log of what its services have to say; that of Windows implements it.
type EventLog interface {
	Warning(id uint32, text string) error
	Error(id uint32, text string) error
}

const (
	eventID  = 1      // of all that we say; the texts tell it apart
	eventMax = 30_000 // bytes; Windows takes 31,839 characters
)

// NewEvents hands log records of level Warn and above to the event log.
func NewEvents(log EventLog) slog.Handler {
	e := &events{log: log, text: new(bytes.Buffer), turn: new(sync.Mutex)}
	e.Handler = slog.NewTextHandler(e.text, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime})
	return e
}

// withoutTime leaves out what an event has by itself.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}

type events struct {
	slog.Handler // writes into text
	log          EventLog
	text         *bytes.Buffer
	turn         *sync.Mutex // for text
}

func (e *events) Handle(ctx context.Context, r slog.Record) error {
	e.turn.Lock()
	defer e.turn.Unlock()
	e.text.Reset()
	if err := e.Handler.Handle(ctx, r); err != nil {
		return err
	}
	return e.tell(r.Level, e.text.String())
}

func (e *events) tell(level slog.Level, text string) error {
	text = strings.ToValidUTF8(strings.TrimSpace(text[:min(len(text), eventMax)]), "")
	if level < slog.LevelError {
		return e.log.Warning(eventID, text)
	}
	return e.log.Error(eventID, text)
}

func (e *events) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &events{e.Handler.WithAttrs(attrs), e.log, e.text, e.turn}
}

func (e *events) WithGroup(name string) slog.Handler {
	return &events{e.Handler.WithGroup(name), e.log, e.text, e.turn}
}

// EventErrors is a stderr that is the event log.
type EventErrors struct{ Log EventLog }

func (w EventErrors) Write(p []byte) (int, error) {
	return len(p), w.Log.Error(eventID, strings.TrimSpace(string(p)))
}
