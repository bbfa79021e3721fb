package redact

import (
	"slices"
	"strings"
)

// Mark stands in the place of a secret.
const Mark = "[redacted]"

// secretWords are what the name of a key, a flag or a variable has in it whose value must not be shown, in lower case
// and without the characters - _ and space.
func secretWords() []string {
	return []string{"psk", "password", "passwd", "passphrase", "secret", "token", "credential", "privatekey", "presharedkey", "sharedkey",
		"clientkey", "accesskey", "apikey", "wgkey"}
}

// IsSecret reports by its name whether the value of a key, a flag or a variable must not be shown.
func IsSecret(name string) bool {
	// Upper case first: that folds letters like the Kelvin sign too, as encoding/json does.
	f := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(strings.ToUpper(name)))
	return slices.ContainsFunc(secretWords(), func(word string) bool { return strings.Contains(f, word) })
}

// Args is a command line without the values of flags whose names say that they are secret, in both forms that flags
// take, and those values.
func Args(args []string) (shown, secrets []string) {
	shown = slices.Clone(args)
	for i, a := range args {
		name, value, has := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(name, "-") || !IsSecret(name):
		case has:
			shown[i], secrets = name+"="+Mark, append(secrets, value)
		case i+1 < len(args):
			shown[i+1], secrets = Mark, append(secrets, args[i+1])
		}
	}
	return shown, secrets
}

// Environ is an environment, as of os.Environ, without the values of variables whose names say that they are secret.
func Environ(environ []string) (shown []string) {
	shown = slices.Clone(environ)
	for i, e := range shown {
		if name, _, _ := strings.Cut(e, "="); IsSecret(name) {
			shown[i] = name + "=" + Mark
		}
	}
	return shown
}

// AddSettings makes known the values of flags and variables whose names say that they are secret.
func (r *Redactor) AddSettings(args, environ []string) {
	_, secrets := Args(args)
	for _, text := range secrets {
		r.Add(text)
	}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); IsSecret(name) {
			r.Add(value)
		}
	}
}
