// Package sandbox drops permissions that a process does not need.
package sandbox

// NoNetwork makes this process and its children unable to open sockets of any kind:
// attempts fail with EPERM. This cannot be undone and needs no privilege. Open sockets
// continue to work. If the system does not support it, the error wraps
// errors.ErrUnsupported or is the kernel's.
func NoNetwork() error { return noNetwork() }
