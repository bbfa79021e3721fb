package probe

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"flannel/pkg/doctor"
)

// Daemon is a running daemon of flanneld or flannel.
type Daemon struct {
	PID           int
	Name          string   // of the program's file
	Args, Environ []string // without the program's name; Environ is nil if it cannot be read
	WhyNot        string   // why it is not known whether it is in this network namespace, or why Environ is nil; else ""
}

// Daemons returns the other daemons in this network namespace, and those of which this
// process cannot read the namespace. commands are the arguments with which flanneld is no
// daemon. Environ may contain secrets. An error, which may come with daemons, means that
// there may be others. Commands that must not run beside a daemon call it. That processes of
// the host may be hidden (hiddenProcesses) is no error for them: in a pod without hostPID,
// they go by the lock of the subnet file (upgrade.md). It is one if not even process 1 is seen.
func Daemons(commands []string) ([]Daemon, error) {
	found, err := daemons(commands)
	if err == nil && commOf(1) == "" {
		err = errors.New("process 1 cannot be read: /proc may hide processes (hidepid)")
	}
	var all []Daemon
	for _, p := range found {
		d := Daemon{PID: p.PID, Name: p.Name, Args: p.Args, WhyNot: p.WhyNot}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		switch {
		case ended(err):
			continue
		case err != nil:
			d.WhyNot = cmp.Or(d.WhyNot, err.Error())
		default:
			d.Environ = strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
		}
		all = append(all, d)
	}
	return all, err
}

// daemonsOfNode returns the daemons for the Snapshot, with their subnet files.
func daemonsOfNode(o Options) ([]doctor.Process, error) {
	all, err := Daemons(o.Commands)
	var found []doctor.Process
	for _, d := range all {
		p := doctor.Process{PID: d.PID, Name: d.Name, Args: d.Args, WhyNot: d.WhyNot}
		if o.SubnetFileOf != nil {
			file, unknown := o.SubnetFileOf(d.Args, d.Environ)
			p.SubnetFile = file
			if unknown != nil {
				p.WhyNot = cmp.Or(p.WhyNot, fmt.Sprintf("find its subnet file: %v", unknown))
			}
		}
		found = append(found, p)
	}
	return found, cmp.Or(err, hiddenProcesses(commOf))
}
