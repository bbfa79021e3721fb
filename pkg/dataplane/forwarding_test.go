package dataplane

import (
	"errors"
	"fmt"
	"testing"
)

// Only parameters with which the kernel drops packets count as such, in whatever place of
// the error they stand.
func TestNotForwarded(t *testing.T) {
	forwarding := &NotForwardingError{Sysctl: "net/ipv4/conf/eth0.5/forwarding", Value: "0", Want: "1"}
	bypass := &NotForwardingError{Sysctl: "net/ipv4/conf/eth0/disable_policy", Value: "1", Want: "0"}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{forwarding, true},
		{bypass, false},
		{errors.Join(bypass, forwarding), true},
		{fmt.Errorf("dataplane: %w", errors.Join(bypass, errors.New("another"))), false},
	} {
		if got := errors.Is(c.err, ErrNotForwarded); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}
