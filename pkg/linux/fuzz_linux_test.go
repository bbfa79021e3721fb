package linux

import (
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// FuzzNotifications hands the watcher what a newer kernel may say. Where a notification is not understood, it must not
// be taken for anything either: the tables stay as they were read.
func FuzzNotifications(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWROUTE), append([]byte{unix.AF_INET, 24, 0, 0, unix.RT_TABLE_MAIN, 70, 0, 1, 0, 0, 0, 0}, 8, 0, unix.RTA_DST, 0, 10, 5, 2, 0, 8, 0, unix.RTA_OIF, 0, 7, 0, 0, 0))
	f.Add(uint16(unix.RTM_DELNEXTHOP), []byte{unix.AF_INET, 0, 70, 0, 0, 0, 0, 0, 8, 0, 1, 0, 42, 0, 0, 0})
	f.Add(uint16(unix.RTM_NEWNEIGH), []byte{unix.AF_BRIDGE, 0, 0, 0, 7, 0, 0, 0, 0x80, 0, 2, 0, 10, 0, 2, 0, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0, 1, 0, 10, 5, 2, 0})
	f.Add(uint16(unix.RTM_NEWLINK), append(make([]byte, unix.SizeofIfInfomsg), 14, 0, unix.IFLA_IFNAME, 0, 'f', 'l', 'a', 'n', 'n', 'e', 'l', '.', '1', 0, 0, 0))
	f.Add(uint16(unix.RTM_NEWADDR), append(make([]byte, unix.SizeofIfAddrmsg), 8, 0, unix.IFA_ADDRESS, 0, 10, 5, 2, 0))
	f.Add(uint16(unix.RTM_NEWNETCONF), []byte{2, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0})
	d, err := New(dataplane.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { d.Close() })                                            //nolint:errcheck // it ends here
	w := &watcher{d: d, last: map[int]linkState{}, addrs: map[addrKey]uint8{}} // beside the one that hears the kernel
	f.Fuzz(func(t *testing.T, kind uint16, body []byte) {
		next := scope{links: map[int]bool{7: true, 0: true}, tunnels: map[int]bool{7: true}, networks: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
		d.scope.Store(&next)
		if err := w.handle(rtnetlink.Header{Kind: kind}, body); err != nil && len(err.Error()) > 200 {
			t.Errorf("a long error: %v", err)
		}
	})
}
