package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// TakeRefusals removes entries from an error that joins others, and leaves the rest.
func TestTakeRefusals(t *testing.T) {
	one, other, unread := errors.New("one"), errors.New("other"), Unknown(errors.New("unread"))
	set := &RefusedError{Table: "things", Verb: "set", Entries: []Refusal{{"a", one}, {"b", other}}}
	pruned := &RefusedError{Table: "things", Verb: "delete", Entries: []Refusal{{"a", one}}}
	err := errors.Join(errors.Join(set, unread), pruned)
	if !errors.Is(err, one) || !errors.Is(err, other) || !IsUnknown(err) {
		t.Errorf("%v does not wrap all reasons", err)
	}
	left := errors.Join(TakeRefusals(err, func(_ *RefusedError, e Refusal) bool { return e.Key == "a" })...)
	if text := left.Error(); strings.Count(text, "things a") != 1 || !logtest.Names(text, "set things b", "delete things a") || !IsUnknown(left) {
		t.Errorf("left is\n%v", left)
	}
	if left := TakeRefusals(set, func(*RefusedError, Refusal) bool { return true }); left != nil {
		t.Errorf("left is %v, want nothing", left)
	}
	if left := TakeRefusals(nil, nil); left != nil {
		t.Errorf("left is %v, want nothing for a nil error", left)
	}
}

// The text of an error with a thousand entries is short.
func TestRefusedErrorIsBounded(t *testing.T) {
	r := &RefusedError{Table: "things", Verb: "set"}
	for i := range 1000 {
		r.Entries = append(r.Entries, Refusal{fmt.Sprint("key", i), errors.New("no")})
	}
	if text := r.Error(); strings.Count(text, "\n") != maxErrors || !strings.Contains(text, "995") {
		t.Errorf("the error is\n%s", text)
	}
}
