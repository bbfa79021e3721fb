package underlay

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzNotifications: a newer kernel may say things that we do not know.
func FuzzNotifications(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWLINK), append(make([]byte, unix.SizeofIfInfomsg), 14, 0, unix.IFLA_IFNAME, 0, 'f', 'l', 'a', 'n', 'n', 'e', 'l', '.', '1', 0, 0, 0))
	f.Add(uint16(unix.RTM_NEWLINK), append(make([]byte, unix.SizeofIfInfomsg), 12, 0, unix.IFLA_LINKINFO, 0, 8, 0, 4, 0, 'b', 'r', 0, 0))
	f.Add(uint16(unix.RTM_DELADDR), make([]byte, unix.SizeofIfAddrmsg))
	f.Add(uint16(unix.RTM_NEWROUTE), make([]byte, unix.SizeofRtMsg))
	f.Add(uint16(unix.RTM_DELNEXTHOP), make([]byte, unix.SizeofNhmsg))
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		known := ignoredLinks{}
		for range 2 {
			known.concerns(kind, data)
		}
		if len(known) > 1 {
			t.Errorf("one message told of %d interfaces", len(known))
		}
	})
}
