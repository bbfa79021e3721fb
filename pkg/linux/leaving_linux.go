package linux

import (
	"context"
	"errors"
	"fmt"
)

// leaving is what a Cleanup or a Handback does. Kinds and the guard add to it what they
// have in the kernel, and change nothing before run.
type leaving struct {
	back  bool     // Handback: what flannel can use stays; else everything is removed
	what  []string // descriptions
	steps []func(context.Context) error
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

// step adds what run does.
func (l *leaving) step(do func(context.Context) error) { l.steps = append(l.steps, do) }

// run does all steps. An error does not stop the rest.
func (l *leaving) run(ctx context.Context) error {
	var errs []error
	for _, do := range l.steps {
		errs = append(errs, do(ctx))
	}
	return errors.Join(errs...)
}
