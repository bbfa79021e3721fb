package udptunnel

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
)

// checkAccess checks the cause of an error, and which of the two fixes it names.
func checkAccess(t *testing.T, name string, err error, errno unix.Errno, cause string, module, device bool) {
	t.Helper()
	e, ok := errors.AsType[*tunError](err)
	if !ok || !errors.Is(err, errno) || e.Cause() != cause || strings.Contains(err.Error(), "\n") ||
		logtest.Names(err.Error(), "modprobe tun") != module || logtest.Names(err.Error(), "DeviceAllow=/dev/net/tun", "--device") != device {
		t.Errorf("%s: %v, want %v with cause %s, naming the module: %t, the device: %t", name, err, errno, cause, module, device)
	}
}

func TestAccessError(t *testing.T) {
	t.Parallel()
	for _, inKernel := range []bool{false, true} {
		for errno, c := range map[unix.Errno]struct {
			cause          string
			module, device bool
		}{
			unix.ENODEV: {causeNoModule, true, false},
			unix.ENXIO:  {causeNoModule, true, false},
			unix.EPERM:  {causeNoDevice, false, true},
			unix.EACCES: {causeNoDevice, false, true},
		} {
			checkAccess(t, errno.Error(), accessError(errno, inKernel), errno, c.cause, c.module, c.device)
		}
		other := accessError(unix.EMFILE, inKernel)
		if _, known := errors.AsType[*tunError](other); known || !errors.Is(other, unix.EMFILE) || !logtest.Names(other.Error(), tunPath) {
			t.Errorf("%v has a known cause", other)
		}
	}
	checkAccess(t, "no file", accessError(unix.ENOENT, true), unix.ENOENT, causeNoDevice, false, true)
	checkAccess(t, "no file and no module", accessError(unix.ENOENT, false), unix.ENOENT, causeNoModule, true, true)
}

// A process in a container, or in a service with PrivateDevices, has a /dev of its own.
func TestNoDeviceFile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		open := func(name string, errno unix.Errno, cause string, module, device bool) {
			t.Helper()
			opened, err := openDevice("flannel0")
			if err == nil {
				err = opened.Close()
			}
			checkAccess(t, name, err, errno, cause, module, device)
		}
		if f, err := os.Open(tunPath); err != nil { // loads the module
			t.Fatal(err)
		} else if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		sh(t, "mount -t tmpfs -o mode=0755 tmpfs /dev/net")
		open("no file", unix.ENOENT, causeNoDevice, false, true)
		sh(t, "mknod /dev/net/tun c 1 200") // which no driver has
		open("a file without a driver", unix.ENXIO, causeNoModule, true, false)
		sh(t, "rm /dev/net/tun; mknod /dev/net/tun c 10 200; mount -o remount,nodev /dev/net")
		open("a file that must not be opened", unix.EACCES, causeNoDevice, false, true)
		sh(t, "rm /dev/net/tun; grep -v tun /proc/misc >/run/misc; mount --bind /run/misc /proc/misc")
		open("neither a file nor a module", unix.ENOENT, causeNoModule, true, true)
	})
}
