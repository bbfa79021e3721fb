package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// leaving is what a Cleanup or a Handback does. Kinds and the guard add to it what they
// have in the kernel, and change nothing before run.
type leaving struct {
	back     bool     // Handback: what flannel can use stays; else everything is removed
	what     []string // descriptions
	entries  []func(context.Context) error
	carriers []func(context.Context) error // after all entries
}

// will describes what is going to be done. For a Cleanup, which removes everything, the
// description is without the verb.
func (l *leaving) will(verb, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if l.back {
		what = verb + " " + what
	}
	l.what = append(l.what, what)
}

// step adds what run does to entries.
func (l *leaving) step(do func(context.Context) error) { l.entries = append(l.entries, do) }

// end adds how run ends what the entries lead to, a device or a process.
func (l *leaving) end(do func(context.Context) error) { l.carriers = append(l.carriers, do) }

// run does everything in order. An error does not stop the rest.
func (l *leaving) run(ctx context.Context) error {
	var errs []error
	for _, do := range slices.Concat(l.entries, l.carriers) {
		errs = append(errs, do(ctx))
	}
	return errors.Join(errs...)
}
