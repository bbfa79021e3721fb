package probe

import (
	"slices"
	"strings"
)

// isDaemon tells, by a process's name and its further arguments, whether it is a flanneld or flannel at work and none
// of the commands. The service manager of Windows starts one that works by the words "service run" at the end.
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
