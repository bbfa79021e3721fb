package rtnetlink

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// Tries bounds how often an interrupted read is repeated.
const Tries = 20

// Repeat calls read, and repeats that after a growing pause while its error is one of
// interruptions, which the kernel returns if what is read changes meanwhile. After Tries
// (0.19 s of pauses) it returns that error.
func Repeat(read func() error, interruptions ...error) (err error) {
	for i := range Tries {
		time.Sleep(time.Duration(i) * time.Millisecond)
		err = read()
		if !slices.ContainsFunc(interruptions, func(i error) bool { return errors.Is(err, i) }) {
			return err
		}
	}
	return fmt.Errorf("%w, at each of %d tries", err, Tries)
}

// Whole reads a list by the library netlink, and repeats that while a change in the kernel
// interrupts it. An interrupted list may lack entries or have some twice (NLM_F_DUMP_INTR).
func Whole[E any](read func() ([]E, error)) (all []E, err error) {
	err = Repeat(func() (err error) { all, err = read(); return err }, netlink.ErrDumpInterrupted)
	if err != nil {
		return nil, err
	}
	return all, nil
}
