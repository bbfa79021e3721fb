package main

import (
	"cmp"
	"fmt"

	"flannel/pkg/file"
	"flannel/pkg/probe"
	"flannel/pkg/status"
	"flannel/subnet"
)

// daemonBeside returns a file.HeldError if a daemon runs here whose network the
// command would change. It finds those that the lock of the subnet file does not: a
// flannel, which has no lock, and, if the default subnet file is gone, every flanneld,
// because cleanup then removes what any of them made.
func (c *call) daemonBeside() error {
	all, err := probe.Daemons(commandNames())
	env, noEnv := subnet.ReadEnv(c.SubnetFile)
	return cmp.Or(conflicting(c.SubnetFile, noEnv != nil || env.IsZero(), all), err)
}

// conflicting returns the error of daemonBeside for the first daemon that conflicts with a
// command for a subnet file. gone: the file does not exist.
func conflicting(subnetFile string, gone bool, all []probe.Daemon) error {
	for _, d := range all {
		// Mistakes do not matter: its subnet file is what it uses.
		if o, _ := parseOptions(d.Args, d.Environ); conflicts(instanceOf(subnetFile), instanceOf(o.SubnetFile), gone) {
			held := &file.HeldError{Path: status.Lock(o.SubnetFile), Holder: fmt.Sprintf("PID %d", d.PID)}
			if d.WhyNot != "" {
				return fmt.Errorf("a flanneld (%s) may run on this node with the subnet file %s (%s); run this as root, or stop that flanneld: %w",
					held.Holder, o.SubnetFile, d.WhyNot, held)
			}
			return fmt.Errorf("a daemon (%s) runs with the subnet file %s; stop it first: %w", held.Holder, o.SubnetFile, held)
		}
	}
	return nil
}

// conflicts reports whether a command for one instance changes what the daemon of
// another one made. The default instance is "". gone: the command's subnet file does
// not exist.
func conflicts(command, daemon string, gone bool) bool {
	return command == daemon || command == "" && gone
}
