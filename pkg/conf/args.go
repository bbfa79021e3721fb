package conf

import (
	"slices"
	"strings"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// secretWords returns words that are only in names of keys, flags and variables with
// a secret value. They are in lower case, without the characters - _ and space.
func secretWords() []string {
	return []string{"psk", "password", "passwd", "passphrase", "secret", "token", "credential", "privatekey", "presharedkey", "sharedkey",
		"clientkey", "accesskey", "apikey", "wgkey"}
}

// isSecret reports whether a key, a flag or a variable with this name has a secret
// value.
func isSecret(name string) bool {
	// ToUpper before ToLower also folds letters such as the Kelvin sign, as
	// encoding/json does.
	folded := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(strings.ToUpper(name)))
	return slices.ContainsFunc(secretWords(), func(word string) bool { return strings.Contains(folded, word) })
}

// RedactArgs replaces the values of secret flags in a command line, in both forms
// (--flag=value and --flag value). It also returns these values.
func RedactArgs(args []string) (shown, secrets []string) {
	shown = slices.Clone(args)
	for i, a := range args {
		name, value, has := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(name, "-") || !isSecret(name):
		case has:
			shown[i], secrets = name+"="+Redacted, append(secrets, value)
		case i+1 < len(args):
			shown[i+1], secrets = Redacted, append(secrets, args[i+1])
		}
	}
	return shown, secrets
}

// RedactEnviron replaces the values of secret variables in an environment, which has the
// form of os.Environ.
func RedactEnviron(environ []string) (shown []string) {
	shown = slices.Clone(environ)
	for i, e := range shown {
		if name, _, _ := strings.Cut(e, "="); isSecret(name) {
			shown[i] = name + "=" + Redacted
		}
	}
	return shown
}

// AddSettings adds the values of secret flags and variables.
func (r *Redactor) AddSettings(args, environ []string) {
	_, secrets := RedactArgs(args)
	for _, text := range secrets {
		r.Add(text)
	}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); isSecret(name) {
			r.Add(value)
		}
	}
}
