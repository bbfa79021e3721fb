// Package winservice installs and controls the Windows service flanneld, and runs
// the daemon under the service manager.
package winservice

import "strings"

const (
	// Name is the name of the service, and of its source in the event log.
	Name = "flanneld"
	// LogFile is the default log file of the service. The event log gets only warnings
	// and errors.
	LogFile = `C:\var\log\flanneld\flanneld.log`
)

// Config is the configuration of the service.
type Config struct {
	Command []string // the program and its arguments
	Env     []string // NAME=VALUE, in addition to the system's variables
	Start   bool     // start it after the installation, and restart it if it runs with another Config
}

// Warnings returns warnings about secrets. Every user who may log on can read the
// arguments and variables of a service in the registry.
func (c Config) Warnings() []string {
	for _, text := range append(c.Command, c.Env...) {
		name, _, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(strings.TrimLeft(text, "-"), "_", "-")), "=")
		if name == "etcd-password" || name == "flanneld-etcd-password" {
			return []string{"every user of this machine can read the etcd password of a service; use a client certificate instead"}
		}
	}
	return nil
}

// runVerb is the end of the service's command line; see Started.
var runVerb = []string{"service", "run"}

// Arguments returns the arguments without runVerb, as the daemon parses them.
func Arguments(args []string) []string {
	if n := len(args); n >= 2 && args[n-2] == runVerb[0] {
		return args[:n-2]
	}
	return args
}
