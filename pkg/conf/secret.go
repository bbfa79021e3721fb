package conf

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
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

// Secret is a text that is not printed: fmt, slog and encoding/json show Redacted. It is
// behind a pointer because fmt does not call methods of unexported fields; of a Secret
// in such a field, it prints only an address. The zero Secret is empty.
type Secret struct{ text *string }

// NewSecret returns the text as a Secret.
func NewSecret(s string) Secret { return Secret{&s} }

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

func (s Secret) String() string { return Redacted }

// Format implements fmt.Formatter.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses, too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
