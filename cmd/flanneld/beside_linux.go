package main

import (
	"fmt"

	"flannel/pkg/probe"
)

// daemonBeside returns an error, which is errBeside, if a daemon runs or may run here
// whose network the command, cleanup or handback, would change. It finds those that the lock
// of the subnet file does not: a flannel, which has no lock, and, if the default subnet file
// is gone, every flanneld, because cleanup then removes what any of them made. It also returns the
// error of cleaner.left.
func (c *call) daemonBeside() error {
	left, err := c.node().left()
	if err != nil {
		return err
	}
	all, unread := probe.Daemons(commandNames())
	return conflicting(c.SubnetFile, len(left.Networks) == 0, all, unread)
}

// conflicting returns the error of daemonBeside for the first daemon that conflicts with a
// command for a subnet file. gone: the file does not exist. unread: why there may be other
// daemons, if not nil. A daemon's Environ is nil if it cannot be read, and WhyNot says why
// that is so, or why it is not known whether the daemon is in this network namespace.
func conflicting(subnetFile string, gone bool, all []probe.Daemon, unread error) error {
	const advice = "run this as root of the host, or stop that flanneld"
	for _, d := range all {
		file, err := subnetFileOf(d.Args, d.Environ)
		switch {
		case err != nil && d.WhyNot != "":
			return fmt.Errorf("a flanneld (PID %d) may run on this node with the same subnet file (%s); %s: %w",
				d.PID, d.WhyNot, advice, errBeside)
		case err != nil:
			return fmt.Errorf("a daemon (PID %d) runs, and may have the same subnet file (%w); stop it first: %w", d.PID, err, errBeside)
		case !conflicts(instanceOf(subnetFile), instanceOf(file), gone): // neither changes what the other one made
		case d.WhyNot != "":
			return fmt.Errorf("a flanneld (PID %d) may run on this node with the subnet file %s (%s); %s: %w",
				d.PID, file, d.WhyNot, advice, errBeside)
		default:
			return fmt.Errorf("a daemon (PID %d) runs with the subnet file %s; stop it first: %w", d.PID, file, errBeside)
		}
	}
	if unread != nil {
		return fmt.Errorf("a flanneld may run on this node (%w); %s: %w", unread, advice, errBeside)
	}
	return nil
}

// conflicts reports whether a command for one instance changes what the daemon of
// another one made. The default instance is "". gone: the command's subnet file does
// not exist.
func conflicts(command, daemon string, gone bool) bool {
	return command == daemon || command == "" && gone
}
