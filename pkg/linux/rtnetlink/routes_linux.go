package rtnetlink

import (
	"errors"

	"golang.org/x/sys/unix"
)

// DumpRoutes is Dump of the routes of one address family in the main table; kernels before 4.20 list those of all
// tables. There are none if the table does not exist yet, or the kernel does not have the family: it then lists the
// routes of all others, which are left out.
func (c *Conn) DumpRoutes(family uint8, reset func(), each func(body []byte) error) error {
	request := make(Message, unix.SizeofRtMsg)
	request[0] = family
	err := c.Dump(unix.RTM_GETROUTE, request.Uint32(unix.RTA_TABLE, unix.RT_TABLE_MAIN), reset, func(body []byte) error {
		switch {
		case len(body) < unix.SizeofRtMsg:
			return ErrShort
		case body[0] != family:
			return nil
		}
		return each(body)
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
