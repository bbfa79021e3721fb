//go:build !linux

package icmp

import (
	"errors"
	"net/netip"
)

// Socket is not supported on this system.
type Socket struct{}

// Open returns an error that is errors.ErrUnsupported.
func Open([4]byte) (*Socket, error) { return nil, errors.ErrUnsupported }

// Send is never called.
func (*Socket) Send(_, _ netip.Addr, _ int, _ []byte) error { return errors.ErrUnsupported }

// Receive is never called.
func (*Socket) Receive() (from netip.Addr, reply, expired bool, body []byte, ok bool) { return }

// Arrived is never called.
func (*Socket) Arrived() <-chan struct{} { return nil }

// Up is never called.
func (*Socket) Up(string) bool { return false }

// Close is never called.
func (*Socket) Close() error { return nil }
