package logging

import (
	"fmt"

	"golang.org/x/sys/windows/svc/eventlog"
)

// OpenEventLog opens the event log of the system, in which a service is the source.
func OpenEventLog(service string) (log EventLog, close func() error, err error) {
	l, err := eventlog.Open(service)
	if err != nil {
		return nil, nil, fmt.Errorf("open the event log: %w", err)
	}
	return l, l.Close, nil
}
