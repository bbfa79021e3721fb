package linux

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// The functions of this file read devices. All their errors are
// reconcile.Unknown; a device that does not exist is not an error.

// answerTimeout is how long to wait for an answer through the netlink library or wgctrl. It comes at once unless
// the kernel, or wireguard-go, hangs; the loop then goes on with an unknown error.
const answerTimeout = 5 * time.Second

// openHandle opens the socket of the netlink library in the network namespace of
// the calling thread.
func openHandle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(answerTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("prepare a netlink socket: %w", err)
	}
	return h, nil
}

// reopen replaces the socket after an unknown error, for the next pass: the kernel would refuse
// lists on the old one while one that was not read to its end is under way. If there is none,
// because the process has run out of file descriptors, the old one stays.
func (d *devices) reopen() {
	if h, err := openHandle(); err == nil {
		d.handle.Close()
		d.handle = h
	}
}

// find returns nil for a device that does not exist.
func (d *devices) find(name string) (netlink.Link, error) {
	l, err := d.handle.LinkByName(name)
	switch {
	case err == nil:
		return l, nil
	case !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, netlink.ErrDumpInterrupted): // these two: see below
		return nil, reconcile.Unknown(err)
	}
	// Where the kernel cannot look up by name, the library searches a list, and
	// does not notice that the list is incomplete.
	all, err := d.listLinks()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.Attrs().Name == name {
			return l, nil
		}
	}
	return nil, nil
}

// listLinks lists the devices of the network namespace.
func (d *devices) listLinks() ([]netlink.Link, error) {
	all, err := readWhole(d.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return all, nil
}

// readWhole is rtnetlink.Whole with errors of this file.
func readWhole[E any](read func() ([]E, error)) ([]E, error) {
	all, err := rtnetlink.Whole(read)
	if err != nil {
		return nil, reconcile.Unknown(err)
	}
	return all, nil
}
