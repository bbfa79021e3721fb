package udptunnel

import (
	"errors"
	"os"
	"regexp"

	"golang.org/x/sys/unix"
)

// tunPath is where programs get TUN devices.
const tunPath = "/dev/net/tun"

// tunError is the error of a process that cannot open /dev/net/tun.
type tunError struct {
	cause, advice string
	err           error
}

func (e *tunError) Error() string {
	return "open " + tunPath + ": " + e.err.Error() + ": " + e.advice
}

func (e *tunError) Unwrap() error { return e.err }

// Cause is the value of the attribute cause in the log.
func (e *tunError) Cause() string { return e.cause }

// Values of tunError.Cause.
const (
	causeNoModule = "no-kernel-module"
	causeNoDevice = "no-tun-device" // of this process
)

// accessError returns a tunError if err, of opening /dev/net/tun, has a known cause.
// inKernel means that the kernel has TUN, so that no module is missing.
//
//	ENODEV, ENXIO   there is a file, and the kernel can find no module for it
//	ENOENT          there is no file: a container or a service has a /dev of its own, or
//	                the host makes the file only when the module is loaded
//	EPERM, EACCES   there is a file, and the cgroup of the container or service, a mount
//	                option or a security module forbids to open it
func accessError(err error, inKernel bool) error {
	const (
		module = "run modprobe tun on the host, and install the package with the kernel's modules if it does not find it"
		device = "give the device to this process (systemd: PrivateDevices=no and DeviceAllow=/dev/net/tun rw; " +
			"Docker: --device /dev/net/tun; Kubernetes: privileged)"
	)
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return &tunError{causeNoModule, "the kernel lacks the module tun: " + module, err}
	case errors.Is(err, unix.ENOENT) && !inKernel:
		return &tunError{causeNoModule, "either the kernel lacks the module tun: " + module +
			"; or this process does not have the host's device file: " + device, err}
	case errors.Is(err, unix.ENOENT):
		return &tunError{causeNoDevice, "the kernel has TUN, and this process does not have the host's device file: " + device, err}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &tunError{causeNoDevice, "this process may not use the device: " + device, err}
	}
	return &os.PathError{Op: "open", Path: tunPath, Err: err}
}

// tunInMisc matches the line of TUN in /proc/misc.
var tunInMisc = regexp.MustCompile(`(?m)^ *[0-9]+ tun$`)

// tunInKernel reports whether the kernel has TUN now, built in or as a loaded module.
func tunInKernel() bool {
	devices, err := os.ReadFile("/proc/misc")
	return err == nil && tunInMisc.Match(devices)
}
