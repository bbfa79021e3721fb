package redact

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is a text that nothing prints. It holds a pointer because fmt calls no methods on unexported fields: of a
// secret in one, only an address is seen.
type Secret struct{ text *string }

// NewSecret makes a secret of a text.
func NewSecret(s string) Secret { return Secret{&s} }

// Reveal returns the text, for the one place that needs it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

func (s Secret) String() string { return Mark }

// Format implements fmt.Formatter.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Mark) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Mark) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Mark), nil }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Mark + `"`), nil }
