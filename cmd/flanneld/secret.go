package main

import (
	"fmt"
	"io"
	"log/slog"

	"flannel/pkg/conf"
)

const redacted = conf.Redacted

// secret is a text that nothing prints. It holds a pointer because fmt calls no methods on unexported fields: of a
// secret in one, only an address is seen.
type secret struct{ text *string }

func newSecret(s string) secret { return secret{&s} }

// reveal returns the text, for the one place that needs it.
func (s secret) reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

func (s secret) String() string               { return redacted }
func (s secret) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, redacted) }
func (s secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (s secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (s secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
