// Package service installs and controls the Windows service flanneld, and runs
// the daemon under the service manager. It also runs the components of a node
// (kubelet, kube-proxy, flanneld), as services or as background processes.
package service

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"flannel/pkg/conf"
)

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

// Daemon has the settings of the daemon that NewConfig needs. The command service install
// finds them by parsing the flags and variables as the daemon does.
type Daemon struct {
	Files   []string // all file names in flags and variables
	LogFile string   // "" if none is set
}

// NewConfig returns the configuration of a service that runs the program with the
// daemon's flags args and the variables env. daemon is the result of parsing these. The
// error has all problems; Start is not set.
func NewConfig(program string, args, env []string, daemon Daemon) (Config, error) {
	command := append([]string{program}, args...)
	var problems []error
	for _, file := range daemon.Files {
		if !rooted.MatchString(file) {
			problems = append(problems, fmt.Errorf("%.100q: give the full path, since a service starts in another directory", file))
		}
	}
	shown, _ := conf.RedactArgs(command)
	for i, arg := range command {
		if strings.Count(arg, "%") > 1 {
			name := shown[i]
			if name == conf.Redacted {
				name = command[i-1] // the flag, whose value is redacted
			}
			problems = append(problems, fmt.Errorf("%.100q: Windows expands the text between two %%; set the flag as a variable by --env", name))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return Config{}, err
	}
	// An explicit empty --log-file means that the user wants no log file.
	if daemon.LogFile == "" && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "log-file=") }) {
		command = append(command, "--log-file="+LogFile)
	}
	return Config{Command: append(command, runVerb...), Env: env}, nil
}

// rooted matches a Windows path that does not depend on the current directory.
var rooted = regexp.MustCompile(`^([A-Za-z]:)?[/\\]`)

// Variables are environment variables, NAME=VALUE. They implement pflag.Value for a
// flag that may be repeated.
type Variables []string

// Set adds a variable, and removes an earlier one of that name. Windows ignores the
// case of names.
func (v *Variables) Set(text string) error {
	name, _, ok := strings.Cut(text, "=")
	if !ok || name == "" || strings.ContainsAny(text, "\x00") {
		return fmt.Errorf("%.60q is not of the form NAME=VALUE", name)
	}
	*v = append(slices.DeleteFunc(*v, func(e string) bool {
		other, _, _ := strings.Cut(e, "=")
		return strings.EqualFold(other, name)
	}), text)
	return nil
}

// String implements pflag.Value. It is the default in the help: none.
func (v *Variables) String() string { return "" }

// Type implements pflag.Value. The help shows it as the name of the value.
func (v *Variables) Type() string { return "NAME=VALUE" }

// Warnings returns warnings about secrets. Every user who may log on can read the
// arguments and variables of a service in the registry.
func (c Config) Warnings() []string {
	for _, text := range append(c.Command, c.Env...) { // as --etcd-password=x, or FLANNELD_ETCD_PASSWORD=x
		name, _, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(strings.TrimLeft(text, "-"), "_", "-")), "=")
		if name == "etcd-password" || name == "flanneld-etcd-password" {
			return []string{"every user of this machine can read the etcd password of a service; use a client certificate instead"}
		}
	}
	return nil
}

// runVerb is the end of the service's command line; see Started.
var runVerb = []string{"service", "run"}

// Arguments returns the arguments without runVerb, as the daemon parses them, and whether they end with it: flanneld
// service install created the service. Others, such as nssm's, may run the daemon, too.
func Arguments(args []string) (rest []string, fromInstall bool) {
	rest = args[:max(0, len(args)-len(runVerb))]
	if slices.Equal(args[len(rest):], runVerb) {
		return rest, true
	}
	return args, false
}
