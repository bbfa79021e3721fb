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
	lately map[string]*rate.Sometimes // by table
}

// NewRepairs returns a Repairs that calls count with the name of a table, or "devices",
// "sysctls" or "endpoints", and the number of repairs. Several goroutines may call it.
func NewRepairs(log *slog.Logger, count func(what string, n int)) *Repairs {
	return &Repairs{log: log, count: count, lately: map[string]*rate.Sometimes{}}
}

// Count counts repairs that have been logged.
func (r *Repairs) Count(what string, n int) {
	if r != nil && n > 0 {
		r.count(what, n)
	}
}

// add counts the repairs of a table, and logs them unless there have been many lately.
func (r *Repairs) add(table string, done reconcile.Repairs) {
	if r == nil || done.Entries == 0 {
		return
	}
	r.count(table, done.Entries)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lately[table] == nil {
		r.lately[table] = &rate.Sometimes{First: 10, Interval: time.Minute}
	}
	r.lately[table].Do(func() {
		r.log.Info("repaired what somebody else had changed", "cause", causeRepaired, "table", table, "entries", done.Entries, "first", done.First)
	})
}

// causeRepaired is a cause in the log.
const causeRepaired = "repaired"
