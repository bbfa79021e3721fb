package reconcile

import (
	"fmt"
	"strings"
)

// RefusedError lists the entries that a store did not set or delete, each with
// its reason. The store did all others.
type RefusedError struct {
	Table   string // name of the store
	Verb    string // "set" or "delete"
	Entries []Refusal
}

// Refusal is an entry that the store did not set or delete.
type Refusal struct {
	Key any // a key of the table
	Err error
}

// maxErrors bounds the entries in the text of an error: a thousand peers may be
// refused for the same reason.
const maxErrors = 5

func (r *RefusedError) Error() string {
	var named []string
	for _, e := range r.Entries[:min(len(r.Entries), maxErrors)] {
		named = append(named, r.Describe(e).Error())
	}
	if more := len(r.Entries) - maxErrors; more > 0 {
		named = append(named, fmt.Sprintf("and %d more %s", more, r.Table))
	}
	return strings.Join(named, "\n")
}

// Describe returns the error of one entry.
func (r *RefusedError) Describe(e Refusal) error {
	return fmt.Errorf("%s %s %v: %w", r.Verb, r.Table, e.Key, e.Err)
}

// Unwrap returns the reasons.
func (r *RefusedError) Unwrap() []error {
	errs := make([]error, 0, len(r.Entries))
	for _, e := range r.Entries {
		errs = append(errs, e.Err)
	}
	return errs
}

// TakeRefusals removes entries from err, which may join several errors. It calls
// take for each entry that was not set, and returns the errors that are left
// without those entries for which take returns true.
func TakeRefusals(err error, take func(r *RefusedError, e Refusal) bool) (left []error) {
	switch e := err.(type) { //nolint:errorlint // an error that wraps a refusal adds a text, and stays whole
	case nil:
	case *RefusedError:
		rest := &RefusedError{Table: e.Table, Verb: e.Verb}
		for _, refusal := range e.Entries {
			if e.Verb != "set" || !take(e, refusal) {
				rest.Entries = append(rest.Entries, refusal)
			}
		}
		if len(rest.Entries) > 0 {
			left = append(left, rest)
		}
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			left = append(left, TakeRefusals(joined, take)...)
		}
	default:
		left = append(left, err)
	}
	return left
}
