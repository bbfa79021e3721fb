// Package sandbox lets a process give up for good what it does not need.
package sandbox

// NoNetwork makes every later attempt of this process and its children to open a socket, of whatever kind, fail with
// EPERM. It needs no privilege. Sockets that are open already stay. Where the system cannot do that it returns an error
// that wraps errors.ErrUnsupported, or the kernel's own.
func NoNetwork() error { return noNetwork() }
