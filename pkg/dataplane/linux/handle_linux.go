package linux

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/reconcile"
	"flannel/pkg/rtnetlink"
)

// What is read of devices. All errors here are of the kind that reconcile.IsUnknown: that a device does not exist is
// an answer and no error.

// answerWithin bounds how long an answer of the kernel is waited for. It comes at once.
const answerWithin = 5 * time.Second

// openHandle opens the library's socket in the network namespace of the calling thread.
func openHandle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(answerWithin); err != nil {
		h.Close()
		return nil, fmt.Errorf("prepare a netlink socket: %w", err)
	}
	return h, nil
}

// reopen begins with a new socket after an error, if there is a descriptor for one: on the old one a list that was given
// up may still be under way, which makes the kernel refuse the next.
func (d *Driver) reopen() {
	if h, err := openHandle(); err == nil {
		d.handle.Close()
		d.handle = h
	}
}

// find returns nil for a device that does not exist.
func (d *Driver) find(name string) (netlink.Link, error) {
	l, err := d.handle.LinkByName(name)
	switch {
	case err == nil:
		return l, nil
	case !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, netlink.ErrDumpInterrupted):
		return nil, reconcile.Unknown(err)
	}
	// On kernels that know no look-up by name the library takes a torn list for a whole one: make sure.
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

func (d *Driver) listLinks() ([]netlink.Link, error) {
	all, err := whole(d.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return all, nil
}

// whole reads a list until no change tore it.
func whole[E any](read func() ([]E, error)) (all []E, err error) {
	for range rtnetlink.Tries {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, reconcile.Unknown(err)
	}
	return all, nil
}
