package probe

import (
	"slices"
	"strings"
)

// isDaemon reports whether a process with that name and arguments (without the
// name) is a daemon of flanneld or flannel. It is not if one of the commands is
// among the arguments, except for service run, with which Windows starts the
// daemon as a service.
func isDaemon(name string, args, commands []string) bool {
	if !strings.HasPrefix(strings.ToLower(name), "flanneld") {
		return false
	}
	if n := len(args); n >= 2 && args[n-2] == "service" && args[n-1] == "run" {
		return true
	}
	return !slices.ContainsFunc(args, func(a string) bool { return slices.Contains(commands, a) })
}

func isKubeProxy(name string) bool { return strings.HasPrefix(strings.ToLower(name), "kube-proxy") }
