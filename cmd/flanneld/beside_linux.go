package main

import (
	"fmt"
	"log/slog"

	"flannel/pkg/daemon/instance"
	"flannel/pkg/file"
	"flannel/pkg/linux"
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
	if err != nil {
		return err
	}
	env, err := subnet.ReadEnv(c.SubnetFile)
	gone := err != nil || env.IsZero()
	for _, d := range all {
		// Mistakes do not matter: its subnet file is what it uses.
		if o, _ := parseOptions(d.Args, d.Environ); conflicts(instance.Of(c.SubnetFile), instance.Of(o.SubnetFile), gone) {
			held := &file.HeldError{Path: status.Lock(o.SubnetFile), Holder: fmt.Sprintf("PID %d", d.PID)}
			return fmt.Errorf("a daemon (%s) runs with the subnet file %s; stop it first: %w", held.Holder, o.SubnetFile, held)
		}
	}
	return nil
}

// warnOfSameIDs warns if a daemon runs here with another subnet file whose name has the
// same range of nexthop IDs. A flanneld with the default subnet file has a range of its own.
func (o options) warnOfSameIDs(log *slog.Logger) {
	own := instance.Of(o.SubnetFile)
	if own == "" {
		return
	}
	all, _ := probe.Daemons(commandNames()) // an error is none of the network's
	for _, d := range all {
		if other, _ := parseOptions(d.Args, d.Environ); linux.SameNexthopIDs(own, instance.Of(other.SubnetFile)) {
			log.Error("another flanneld on this machine has the same IDs of nexthop objects, and each deletes the other's; give one of the two another --subnet-file",
				"cause", causeSameIDs, "pid", d.PID, "subnet_file", other.SubnetFile)
		}
	}
}

// causeSameIDs is a cause in the log.
const causeSameIDs = "same-nexthop-ids"

// conflicts reports whether a command for one instance changes what the daemon of
// another one made. The default instance is "". gone: the command's subnet file does
// not exist.
func conflicts(command, daemon string, gone bool) bool {
	return command == daemon || command == "" && gone
}
