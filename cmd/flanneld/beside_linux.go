package main

import (
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/probe"
	"flannel/subnet"
)

// daemonBeside returns an error, which is errBeside, if a daemon runs or may run here
// whose network the command, cleanup or handback, would change. It finds those that the lock
// of the subnet file does not: a flannel, which has no lock, and, if the default subnet file
// is gone, every flanneld, because cleanup then removes what any of them made.
func (c *call) daemonBeside() error {
	all, unread := probe.Daemons(commandNames())
	env, noEnv := subnet.ReadEnv(c.SubnetFile)
	return conflicting(c.SubnetFile, noEnv != nil || env.IsZero(), all, unread)
}

// conflicting returns the error of daemonBeside for the first daemon that conflicts with a
// command for a subnet file. gone: the file does not exist. unread: why there may be other
// daemons, if not nil. A daemon's Environ is nil if it cannot be read, and WhyNot says why
// that is so, or why it is not known whether the daemon is in this network namespace.
func conflicting(subnetFile string, gone bool, all []probe.Daemon, unread error) error {
	const advice = "run this as root of the host, or stop that flanneld"
	for _, d := range all {
		o, _ := parseOptions(d.Args, d.Environ) // mistakes after its subnet file do not matter
		_, given := o.given["subnet-file"]
		// Flags behind one that flanneld does not know are not read.
		named := slices.ContainsFunc(d.Args, func(arg string) bool { return strings.Contains(arg, "subnet-file") })
		switch {
		case d.Environ == nil && !given: // FLANNELD_SUBNET_FILE may name any
			return fmt.Errorf("a flanneld (PID %d) may run on this node with the same subnet file (%s); %s: %w",
				d.PID, d.WhyNot, advice, errBeside)
		case named && o.given["subnet-file"] != "--subnet-file": // perhaps the environment names another one, which the flag overrides
			return fmt.Errorf("a daemon (PID %d) runs with unknown flags, and may have the same subnet file; stop it first: %w", d.PID, errBeside)
		case !conflicts(instanceOf(subnetFile), instanceOf(o.SubnetFile), gone): // neither changes what the other one made
		case d.WhyNot != "":
			return fmt.Errorf("a flanneld (PID %d) may run on this node with the subnet file %s (%s); %s: %w",
				d.PID, o.SubnetFile, d.WhyNot, advice, errBeside)
		default:
			return fmt.Errorf("a daemon (PID %d) runs with the subnet file %s; stop it first: %w", d.PID, o.SubnetFile, errBeside)
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
