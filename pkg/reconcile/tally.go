package reconcile

import (
	"fmt"
	"strings"
	"sync"
)

// Tally adds up what the tables changed. Its methods may be called from any
// goroutine.
type Tally struct {
	mu     sync.Mutex
	tables []tallied // in the order of their first change
}

type tallied struct {
	name string
	done Result
}

// Add adds the result of one table.
func (t *Tally) Add(table string, done Result) {
	if done == (Result{}) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.tables {
		if t.tables[i].name == table {
			t.tables[i].done = t.tables[i].done.Plus(done)
			return
		}
	}
	t.tables = append(t.tables, tallied{table, done})
}

// Take returns the sum of all tables and, for the log, what each of them changed.
// It empties the tally.
func (t *Tally) Take() (sum Result, byTable string) {
	t.mu.Lock()
	tables := t.tables
	t.tables = nil
	t.mu.Unlock()
	var texts []string
	for _, table := range tables {
		sum = sum.Plus(table.done)
		texts = append(texts, table.name+": "+table.done.String())
	}
	return sum, strings.Join(texts, "; ")
}

// String describes the result for the log.
func (r Result) String() string {
	var texts []string
	for _, part := range []struct {
		what string
		n    int
	}{{"added", r.Added()}, {"changed", r.Replaced}, {"deleted", r.Deleted}, {"refused", r.Failed}} {
		if part.n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	return strings.Join(texts, ", ")
}
