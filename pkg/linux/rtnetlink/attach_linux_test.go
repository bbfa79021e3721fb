package rtnetlink

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel takes the length in 16 bits: a longer filter must not be cut.
func TestLongFilter(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	filter := make([]unix.SockFilter, math.MaxUint16+2)
	for i := range filter {
		filter[i] = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	}
	if err := attach(fd, filter); !errors.Is(err, unix.EINVAL) {
		t.Errorf("attached: %v", err)
	}
}
