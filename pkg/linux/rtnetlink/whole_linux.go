package rtnetlink

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// Whole reads a list by the library netlink, and repeats that after a growing pause while
// a change in the kernel interrupts it. An interrupted list may lack entries or have some
// twice (NLM_F_DUMP_INTR). After Tries it returns the error.
func Whole[E any](read func() ([]E, error)) (all []E, err error) {
	for i := range Tries {
		time.Sleep(time.Duration(i) * time.Millisecond)
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}
