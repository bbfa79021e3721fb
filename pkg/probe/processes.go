package probe

import (
	"slices"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/doctor"
)

// process is a running process.
type process struct {
	pid     int
	name    string   // of the program's file
	args    []string // the first is the name
	argsErr error    // why args could not be read; nil also if nobody tried
}

// ownArgs returns the arguments without the name.
func (p process) ownArgs() []string { return p.args[min(1, len(p.args)):] }

// withoutSecrets returns the process for the Snapshot.
func (p process) withoutSecrets() doctor.Process {
	args, _ := conf.RedactArgs(p.ownArgs())
	return doctor.Process{PID: p.pid, Name: p.name, Args: args}
}

// isDaemon reports whether the process is a daemon of flanneld or flannel. It
// is not if one of the commands is among the arguments, except for service run,
// with which Windows starts the daemon as a service.
func (p process) isDaemon(commands []string) bool {
	if !strings.HasPrefix(strings.ToLower(p.name), "flanneld") {
		return false
	}
	args := p.ownArgs()
	if n := len(args); n >= 2 && args[n-2] == "service" && args[n-1] == "run" {
		return true
	}
	return !slices.ContainsFunc(args, func(a string) bool { return slices.Contains(commands, a) })
}

// isKubeProxy matches names like kube-proxy.exe and kube-proxy-amd64.exe.
func isKubeProxy(name string) bool { return strings.HasPrefix(strings.ToLower(name), "kube-proxy") }
