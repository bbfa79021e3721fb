// Package winservice is flanneld as a service of Windows: installing and controlling it, and running under the service
// manager.
package winservice

import (
	"strings"
	"time"
)

const (
	// Name is that of the Windows service, and of its source in the event log.
	Name = "flanneld"
	// LogFile is the log file of a service that is given none: without one it would have warnings alone.
	LogFile = `C:\var\log\flanneld\flanneld.log`
)

// Config is what the service manager shall know of the service.
type Config struct {
	Command      []string        // the program and its arguments
	Env          []string        // NAME=VALUE, beside the system's
	RestartAfter []time.Duration // its first, second, and any later failure
	RestartReset time.Duration   // after so long without one, the next failure counts as the first again
	Start        bool            // once it is made; one that runs with something else is started anew
}

// New is the service with that command line and those variables.
func New(command, env []string) Config {
	return Config{Command: command, Env: env, RestartAfter: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}, RestartReset: 10 * time.Minute}
}

// Warnings are about what everybody who may log on could read: the registry has a service's arguments and variables.
func (c Config) Warnings() []string {
	for _, text := range append(c.Command, c.Env...) {
		name, _, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(strings.TrimLeft(text, "-"), "_", "-")), "=")
		if name == "etcd-password" || name == "flanneld-etcd-password" {
			return []string{"every user of this machine can read the etcd password of a service; better use a client certificate"}
		}
	}
	return nil
}

// runVerb ends the command line of a service.
var runVerb = []string{"service", "run"}

// Arguments are those of a process that Started reports, as the daemon takes them.
func Arguments(args []string) []string {
	if n := len(args); n >= 2 && args[n-2] == runVerb[0] {
		return args[:n-2]
	}
	return args
}
