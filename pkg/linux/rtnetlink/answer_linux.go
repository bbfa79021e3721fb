package rtnetlink

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// messages calls each for every message of a datagram. It returns ErrShort at a
// message that is cut off.
func messages(b []byte, each func(h Header, body []byte) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return ErrShort
		}
		h := Header{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])}
		if err := each(h, b[unix.NLMSG_HDRLEN:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return nil
}

// parseRefusal parses NLMSG_ERROR or NLMSG_DONE: a negative errno, and perhaps a
// text. The errno 0 means success.
func parseRefusal(h Header, body []byte) refusal {
	if len(body) < 4 {
		return refusal{}
	}
	r := refusal{errno: unix.Errno(-int32(binary.NativeEndian.Uint32(body)))}
	const ackTLVs = 0x200 // NLM_F_ACK_TLVS; of the request, only the header is included (NETLINK_CAP_ACK)
	if rest := 4 + unix.NLMSG_HDRLEN; h.Kind == unix.NLMSG_ERROR && h.Flags&ackTLVs != 0 && len(body) > rest {
		r.text = unix.ByteSliceToString(Attr(body[rest:], 1)) // NLMSGERR_ATTR_MSG
	}
	return r
}

// noRoute are the errors of a lookup that ended without a route, or at a rule or a route of
// type unreachable, prohibit, blackhole or throw, or in a family that the kernel does not have.
var noRoute = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAGAIN, unix.ENODEV, unix.EAFNOSUPPORT, unix.EOPNOTSUPP}

// NoRoute reports whether an error of a lookup (RTM_GETROUTE) is the kernel's answer that there
// is no route. After any other error, nothing is known about the route.
func NoRoute(err error) bool {
	return slices.ContainsFunc(noRoute, func(none error) bool { return errors.Is(err, none) })
}
