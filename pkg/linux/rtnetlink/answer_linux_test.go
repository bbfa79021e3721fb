package rtnetlink

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
)

func TestRefusals(t *testing.T) {
	code := -int32(unix.EEXIST)
	body := append(binary.NativeEndian.AppendUint32(nil, uint32(code)), make([]byte, unix.NLMSG_HDRLEN)...) // the header of the request
	if err := parseRefusal(Header{Kind: unix.NLMSG_ERROR}, body); !errors.Is(err, unix.EEXIST) {
		t.Errorf("got %v, want %v", err, unix.EEXIST)
	}
	const why = "Nexthop id does not exist"
	text := Message(body).Attr(1, []byte(why+"\x00"))
	err := parseRefusal(Header{Kind: unix.NLMSG_ERROR, Flags: 0x200}, text)
	if !errors.Is(err, unix.EEXIST) || !logtest.Names(err.Error(), why) {
		t.Errorf("got %v, want %v and %q", err, unix.EEXIST, why)
	}
}

// The kernel is trusted, but a newer one may send messages that we do not know.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(Message(nil).Begin(unix.NLMSG_ERROR, 0x200, make([]byte, 4+unix.NLMSG_HDRLEN)).Attr(1, []byte("no\x00"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = messages(b, func(head Header, body []byte) error {
			parseRefusal(head, body)
			return nil
		})
	})
}
