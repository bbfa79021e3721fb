package extension

import (
	"context"
	"errors"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
)

// A command that fails again in the same way has the same error, though it prints its PID: the daemon logs an error again
// when its text changes.
func TestSameFailure(t *testing.T) {
	n := newNode(t)
	n.tell("fail-10.5.3.0-24", true)
	paths := peerPaths(3, "") // of which the daemon makes no new ones each time
	first, err := n.pass(paths...)
	if err != nil || len(first) != 2 || !strings.Contains(first[0].Err.Error(), "PID") {
		t.Fatal(first, err)
	}
	n.recorded()
	tries := 0
	eventually.True(t, "it is tried twice again", func() bool {
		refused, err := n.pass(paths...)
		if err != nil || len(refused) != 2 || refused[0].Err.Error() != first[0].Err.Error() {
			t.Fatalf("%v, then %v, %v", first, refused, err)
		}
		tries += len(n.recorded())
		return tries >= 2
	})
	other := func(output string) error {
		return &commandError{Key: "SubnetAddCommand", Output: output, Err: errors.New("exit status 1")}
	}
	for _, c := range []struct {
		last, err error
		same      bool
	}{
		{other("no route to 10.0.0.1, PID 7"), other("no route to 10.0.0.1, PID 1234"), true},
		{other("no route"), other("no memory"), false},
		{nil, other("no route"), false},
		{other("no route"), &commandError{Key: "SubnetAddCommand", Output: "no route", Err: errors.New("exit status 2")}, false},
		{other("no route"), &commandError{Key: "SubnetRemoveCommand", Output: "no route", Err: errors.New("exit status 1")}, false},
		{other("no route"), context.Canceled, false},
	} {
		if got := sameFailure(c.last, c.err); (got == c.last) != c.same || got != c.last && got != c.err {
			t.Errorf("%v, then %v: %v", c.last, c.err, got)
		}
	}
}
