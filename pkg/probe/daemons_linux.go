package probe

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

// Daemon is a running daemon of flanneld or flannel.
type Daemon struct {
	PID           int
	Args, Environ []string // without the program's name; Environ is nil if it cannot be read
	WhyNot        string   // why it is not known whether it is in this network namespace, or why Environ is nil; else ""
}

// Daemons returns the other daemons in this network namespace, and those of which this
// process cannot read the namespace. commands are the arguments with which flanneld is no
// daemon. Environ may contain secrets. An error, which may come with daemons, means that
// there may be others. Commands that must not run beside a daemon call it.
func Daemons(commands []string) ([]Daemon, error) {
	found, err := daemons(commands)
	var all []Daemon
	for _, p := range found {
		d := Daemon{PID: p.PID, Args: p.Args, WhyNot: p.WhyNot}
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
