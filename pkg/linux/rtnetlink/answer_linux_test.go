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

func TestAttr(t *testing.T) {
	inner := Message(nil).Attr(3, nil).Attr(2, []byte("second")).Attr(2, []byte("third"))
	outer := Message(nil).Attr(2, []byte("first")).Attr(1|unix.NLA_F_NESTED, inner)
	for _, c := range []struct {
		kinds []uint16
		want  []byte
	}{
		{[]uint16{2}, []byte("first")}, {[]uint16{1, 2}, []byte("second")}, {[]uint16{1, 3}, []byte{}}, {[]uint16{4}, nil}, {[]uint16{4, 2}, nil},
		{[]uint16{1, 3, 2}, nil},
	} {
		if got := Attr(outer, c.kinds...); string(got) != string(c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%v: got %q, want %q", c.kinds, got, c.want)
		}
	}
	if got := Attr(outer[:len(outer)-1], 1); got != nil {
		t.Errorf("of one that is cut off: %q", got)
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
