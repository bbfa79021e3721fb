package conf

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"unique"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// SecretWords returns words that are only in names of keys, flags and variables with
// a secret value. They are in lower case, without the characters - _ and space.
func SecretWords() []string {
	return []string{"psk", "password", "passwd", "passphrase", "secret", "token", "credential", "privatekey", "presharedkey", "sharedkey",
		"clientkey", "accesskey", "apikey", "wgkey"}
}

// IsSecret reports whether a key, a flag or a variable with this name has a secret
// value.
func IsSecret(name string) bool {
	// ToUpper before ToLower also folds letters such as the Kelvin sign, as
	// encoding/json does.
	folded := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(strings.ToUpper(name)))
	return slices.ContainsFunc(SecretWords(), func(word string) bool { return strings.Contains(folded, word) })
}

// RedactArgs replaces the values of secret flags in a command line, in both forms
// (--flag=value and --flag value). It also returns these values.
func RedactArgs(args []string) (shown []string, secrets []Secret) {
	shown = slices.Clone(args)
	for i, a := range args {
		name, value, has := strings.Cut(a, "=")
		switch {
		case !strings.HasPrefix(name, "-") || !IsSecret(name): // no secret flag
		case has:
			shown[i], secrets = name+"="+Redacted, append(secrets, NewSecret(value))
		case i+1 < len(args):
			shown[i+1], secrets = Redacted, append(secrets, NewSecret(args[i+1]))
		}
	}
	return shown, secrets
}

// Secret is a text, or the bytes of a key, that is not printed: fmt, slog and encoding/json
// show Redacted. Two are equal (==) if their texts are, so that a change is noticed without a
// digest, by which a text can be guessed. The text is in a unique.Handle, which is a pointer: fmt
// does not call methods of unexported fields, and of a Secret in such a field, it prints only
// an address. The zero Secret is empty.
type Secret struct{ text unique.Handle[string] }

// NewSecret returns the text as a Secret.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{unique.Make(s)}
}

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s == (Secret{}) { // the zero Handle has no value
		return ""
	}
	return s.text.Value()
}

func (s Secret) String() string { return Redacted }

// Format implements fmt.Formatter.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses, too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
