package dataplane

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotForwarded stands for those NotForwardingErrors with which the kernel drops packets.
// Packets that bypass IPsec are forwarded.
var ErrNotForwarded = errors.New("pods' packets are not forwarded")

// NotForwardingError is the error of a kernel parameter with which this node does not
// forward its pods' packets, or not as it should.
type NotForwardingError struct {
	Sysctl      string // as sysctl(8) takes it, with slashes, since names of devices may contain dots: "net/ipv4/conf/cni0/forwarding"
	Value, Want string
	Err         error // of setting it; nil: the device is not flanneld's, so that it was not tried
}

// parameter returns the last part of Sysctl, without the device.
func (e *NotForwardingError) parameter() string {
	return e.Sysctl[strings.LastIndexByte(e.Sysctl, '/')+1:]
}

// Is reports whether ErrNotForwarded stands for e.
func (e *NotForwardingError) Is(target error) bool {
	return target == ErrNotForwarded && e.parameter() == "forwarding"
}

func (e *NotForwardingError) Error() string {
	parameter := e.parameter()
	effect := "the kernel does not forward pods' packets that arrive there"
	if parameter != "forwarding" {
		effect = "packets bypass IPsec"
	}
	text := fmt.Sprintf("%[1]s is %[2]s, so that %[3]s: run sysctl -w %[1]s=%[4]s on the host, and correct what sets it "+
		"(grep -ri %[5]s /etc/sysctl.conf /etc/sysctl.d /usr/lib/sysctl.d /etc/systemd/network)", e.Sysctl, e.Value, effect, e.Want, parameter)
	if e.Err != nil {
		text += "; " + e.Err.Error()
	}
	return text
}

// Unwrap returns the error of the system, if there is one.
func (e *NotForwardingError) Unwrap() error { return e.Err }

// Cause is the value of the attribute cause in the log.
func (*NotForwardingError) Cause() string { return "not-forwarding" }
