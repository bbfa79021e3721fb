//go:build !linux

package subnet

// notifyDir hints at nothing here: the file is looked at once in a while.
func notifyDir(string, chan<- struct{}) (rearm func() bool, stop func()) {
	return func() bool { return false }, func() {}
}
