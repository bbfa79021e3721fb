package conf

import (
	"slices"
	"strings"
)

// Redacted stands in the place of a secret.
const Redacted = "[redacted]"

// HideArgs is a command line without the values of flags whose names say that they are secret, in both forms that flags
// take, and those values.
func HideArgs(args []string) (shown, secrets []string) {
	shown = slices.Clone(args)
	for i, a := range args {
		name, value, has := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(name, "-") || !Secret(name):
		case has:
			shown[i], secrets = name+"="+Redacted, append(secrets, value)
		case i+1 < len(args):
			shown[i+1], secrets = Redacted, append(secrets, args[i+1])
		}
	}
	return shown, secrets
}
