package probe

import (
	"slices"
	"strings"

	"flannel/pkg/conf"
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

// withoutSecrets hides the values of flags whose names say that they are secret, in both forms that flags take.
func withoutSecrets(args []string) []string {
	const hidden = "[redacted]"
	args = slices.Clone(args)
	for i, a := range args {
		name, _, hasValue := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(name, "-") || !conf.Secret(name):
		case hasValue:
			args[i] = name + "=" + hidden
		case i+1 < len(args):
			args[i+1] = hidden
		}
	}
	return args
}
