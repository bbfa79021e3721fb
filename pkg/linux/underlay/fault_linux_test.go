package underlay

import (
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/underlay"
)

// Whatever system call fails, Read returns an error, or all that there is: never less.
func TestReadAllOrNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, plug)
		run(t, `ip nexthop add id 7 via 192.168.1.1 dev eth0; ip route add default nhid 7 metric 70
			echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode # so that Read reads the object`)
		o := underlay.Options{CanReach: netip.MustParseAddr("9.9.9.9")}
		faults := nstest.NewFaults(t)
		want, err := Read(o)
		if err != nil {
			t.Fatal(err)
		}
		for n, calls := 1, faults.Fail(0, 0); n <= calls; n++ {
			for _, errno := range []unix.Errno{unix.EMFILE, unix.ENOBUFS, unix.ENOMEM} {
				faults.Fail(n, errno)
				got, err := Read(o)
				faults.Fail(0, 0)
				if err == nil && !reflect.DeepEqual(got, want) {
					t.Errorf("call %d failed with %v: read %+v, want %+v", n, errno, got, want)
				}
			}
		}
	})
}
