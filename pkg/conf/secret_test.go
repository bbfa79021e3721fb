package conf

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestRedactArgs(t *testing.T) {
	for args, want := range map[string][2]string{
		"--a=b c --etcd-password=x=y": {"--a=b c --etcd-password=[redacted]", "x=y"},
		"-token x --token":            {"-token [redacted] --token", "x"},
		"token=x psk y":               {"token=x psk y", ""},
		"--psk --ip-masq":             {"--psk [redacted]", "--ip-masq"}, // may be the value
	} {
		given := strings.Fields(args)
		shown, hidden := RedactArgs(given)
		var secrets []string
		for _, s := range hidden {
			secrets = append(secrets, s.Reveal())
		}
		if strings.Join(shown, " ") != want[0] || strings.Join(secrets, " ") != want[1] || !slices.Equal(given, strings.Fields(args)) {
			t.Errorf("%s: %q %q", args, shown, secrets)
		}
	}
}

// Secrets are equal if their texts are, and no form of the text is printed, not even of a field that fmt may not call methods of.
func TestSecret(t *testing.T) {
	const text = "hunter2-hunter2"
	type hidden struct {
		id     int
		secret Secret
	}
	s := NewSecret(text)
	if s != NewSecret(strings.Clone(text)) || s == NewSecret("other") || NewSecret("") != (Secret{}) || s.Reveal() != text || (Secret{}).Reveal() != "" {
		t.Error("equality is not that of the texts")
	}
	var out strings.Builder
	for _, v := range []any{s, &s, hidden{1, s}, &hidden{1, s}, []hidden{{1, s}}, map[string]hidden{"x": {1, s}}, struct{ Any any }{hidden{1, s}}, struct{ any }{s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%t", "%p", "%w"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("text", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("json", "v", v)
	}
	for _, form := range []string{text, fmt.Sprintf("%x", text), fmt.Sprintf("%X", text), strings.Trim(fmt.Sprint([]byte(text)), "[]")} {
		if strings.Contains(out.String(), form) {
			t.Errorf("%q is in %s", form, &out)
		}
	}
	if !strings.Contains(out.String(), Redacted) {
		t.Errorf("no word about a secret: %s", &out)
	}
}
