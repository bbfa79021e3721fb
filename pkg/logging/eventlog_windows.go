package logging

import (
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/sys/windows/svc/eventlog"
)

// OpenEventLog opens the event log of the system, in which a service is the source. What
// is written to stderr becomes an event of type Error; events is for Options.Events.
func OpenEventLog(service string) (stderr io.Writer, events slog.Handler, close func() error, err error) {
	l, err := eventlog.Open(service)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open the event log: %w", err)
	}
	return eventErrors{l}, newEvents(l), l.Close, nil
}
