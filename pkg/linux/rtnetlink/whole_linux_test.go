package rtnetlink

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vishvananda/netlink"
)

func TestWhole(t *testing.T) {
	other := errors.New("another error")
	for _, c := range []struct {
		interrupted int
		last        error
		reads       int
		want        error
	}{
		{0, nil, 1, nil},
		{Tries - 1, nil, Tries, nil},
		{Tries, nil, Tries, netlink.ErrDumpInterrupted},
		{2, other, 3, other},
	} {
		synctest.Test(t, func(t *testing.T) {
			reads := 0
			all, err := Whole(func() ([]int, error) {
				if reads++; reads <= c.interrupted {
					return []int{1}, fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
				}
				if c.last != nil {
					return nil, c.last
				}
				return []int{1, 2}, nil
			})
			whole := slices.Equal(all, []int{1, 2})
			if reads != c.reads || !errors.Is(err, c.want) || whole != (c.want == nil) {
				t.Errorf("%d interrupted: %d reads, %v, %v; want %d, %v", c.interrupted, reads, all, err, c.reads, c.want)
			}
		})
	}
}
