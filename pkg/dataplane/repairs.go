package dataplane

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"flannel/pkg/reconcile"
)

// Repairs logs and counts what somebody else had changed and a driver has changed back.
// A nil one does nothing.
type Repairs struct {
	log   *slog.Logger
	count func(what string, n int)

	mu     sync.Mutex
	lately map[string]*rate.Sometimes // by what is counted
}

// NewRepairs returns a Repairs that calls count with the name of a table, or "devices",
// "sysctls" or "endpoints", and the number of repairs. Several goroutines may call it.
func NewRepairs(log *slog.Logger, count func(what string, n int)) *Repairs {
	return &Repairs{log: log, count: count, lately: map[string]*rate.Sometimes{}}
}

// Count counts n repairs, and reports whether its caller should log them: the first ten times for each
// what, and then once a minute, since another program may undo each repair at once. A nil Repairs does not
// count, and has all of them logged.
func (r *Repairs) Count(what string, n int) (logs bool) {
	if r == nil {
		return true
	}
	r.count(what, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lately[what] == nil {
		r.lately[what] = &rate.Sometimes{First: 10, Interval: time.Minute}
	}
	r.lately[what].Do(func() { logs = true })
	return logs
}

// add counts the repairs of a table, and logs them unless there have been many lately.
func (r *Repairs) add(table string, done reconcile.Repairs) {
	if r == nil || done.Entries == 0 {
		return
	}
	if logs := r.Count(table, done.Entries); logs {
		r.log.Info("repaired what somebody else had changed", "cause", causeRepaired, "table", table, "entries", done.Entries, "first", done.First)
	}
}

// causeRepaired is a cause in the log.
const causeRepaired = "repaired"
