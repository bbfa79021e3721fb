package reconcile

import (
	"fmt"
	"strings"
)

// RefusedError says which entries a store did not set or delete, each with its own reason. All others are done.
type RefusedError struct {
	Table   string // the store's name
	Verb    string // "set" or "delete"
	Entries []Refusal
}

// Refusal is one entry that was refused.
type Refusal struct {
	Key any // a key of the table
	Err error
}

// maxErrors bounds how many refused entries an error names: a thousand peers may be refused for one reason.
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

// Describe is the error of one of the entries alone.
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

// TakeRefusals splits err, which may join others: take is asked for each entry that was not set, and the error is
// what is left without those that it takes.
func TakeRefusals(err error, take func(r *RefusedError, e Refusal) bool) (left []error) {
	switch e := err.(type) { //nolint:errorlint // what wraps a refusal, rather than joins it, has something to say
	case nil:
	case *RefusedError:
		rest := &RefusedError{Table: e.Table, Verb: e.Verb}
		for _, one := range e.Entries {
			if e.Verb != "set" || !take(e, one) {
				rest.Entries = append(rest.Entries, one)
			}
		}
		if len(rest.Entries) > 0 {
			left = append(left, rest)
		}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			left = append(left, TakeRefusals(one, take)...)
		}
	default:
		left = append(left, err)
	}
	return left
}
