package probe

import (
	"fmt"
	"os"
	"strings"
)

// Daemon is a running daemon of flanneld or flannel.
type Daemon struct {
	PID           int
	Args, Environ []string // without the program's name; Environ is nil if it cannot be read
	WhyNot        string   // why it is not known whether it is in this network namespace; "": it is
}

// Daemons returns the other daemons in this network namespace, of those that this
// process can see. commands are the arguments with which flanneld is no daemon. Environ
// may contain secrets.
func Daemons(commands []string) ([]Daemon, error) {
	found, err := daemons(commands)
	var all []Daemon
	for _, p := range found {
		d := Daemon{PID: p.PID, Args: p.Args, WhyNot: p.WhyNot}
		if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID)); err == nil {
			d.Environ = strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
		}
		all = append(all, d)
	}
	return all, err
}
