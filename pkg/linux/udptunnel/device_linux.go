package udptunnel

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// ErrBusy means that another process sends and receives the packets of the device.
var ErrBusy = errors.New("another process has the device open, perhaps flannel's flanneld: stop it, or set another Backend.Port for all nodes")

// MaxSegments is the number of packets that one read of a device returns at most: the batch
// size of package tun, which cannot split a packet into more. The driver's kind tun sets it as
// gso_max_segs of the device, so that the kernel puts no more into one packet.
const MaxSegments = 128

// openDevice opens the TUN device with a name, and creates it if there is none. The
// device stays when the process ends, with its address and routes, so that packets of
// pods do not take another way meanwhile. Its errors are for an operator.
func openDevice(name string) (device tun.Device, err error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, accessError(err, tunInKernel())
	}
	opened := false
	defer func() {
		if !opened {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("device name %s: %w", name, err)
	}
	// IP packets (TUN, not the Ethernet frames of TAP), each behind a virtio header (VNET_HDR) and no other (NO_PI).
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("attach to the device: %w (%w)", ErrBusy, err)
	case err != nil:
		return nil, fmt.Errorf("attach to the device: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return nil, fmt.Errorf("make the device persistent: %w", err)
	}
	opened = true // from here on, an os.File of the package tun closes fd, even after an error
	if device, _, err = tun.CreateUnmonitoredTUNFromFD(fd); err != nil {
		return nil, fmt.Errorf("use the device's offloads: %w", err)
	}
	return device, nil
}

// forget makes the kernel delete the device when its descriptor is closed.
func forget(device tun.Device) error {
	raw, err := device.File().SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 0) })
	return errors.Join(err, failed)
}

// deviceName returns the present name of a device, which somebody may have changed.
func deviceName(device tun.Device) (string, error) {
	raw, err := device.File().SyscallConn()
	if err != nil {
		return "", err
	}
	request, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, request) })
	return request.Name(), errors.Join(err, failed)
}

// isFatal reports whether an error of reading or writing means that the device is
// gone or closed. Other errors concern one packet. EBADFD is that of a device that was deleted,
// EFAULT that of a read during which it is deleted.
func isFatal(err error) bool {
	if errors.Is(err, os.ErrClosed) {
		return true
	}
	errno, isSystem := errors.AsType[syscall.Errno](err)
	return isSystem && (errno == unix.EBADFD || errno == unix.EBADF || errno == unix.EFAULT)
}
