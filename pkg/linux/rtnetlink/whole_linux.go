package rtnetlink

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// TablesGeneration returns a number that every transaction of nf_tables in the network namespace of the
// calling thread changes, a moment before others see the change; 0: unknown. Who remembers what was read at a
// number asks for the number first, and reads again after a notification.
func TablesGeneration() uint32 {
	const tables = unix.NFNL_SUBSYS_NFTABLES << 8
	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg; the answer begins with one, too
	request := nl.NewNetlinkRequest(tables|unix.NFT_MSG_GETGEN, 0)
	request.AddRawData(header)
	answers, err := request.Execute(unix.NETLINK_NETFILTER, tables|unix.NFT_MSG_NEWGEN)
	if err != nil || len(answers) == 0 || len(answers[0]) < len(header) {
		return 0
	}
	return Number(Attr(answers[0][len(header):], unix.NFTA_GEN_ID)) // its bytes may be swapped: it is only compared
}
