package conf

import (
	"slices"
	"strings"
	"testing"
)

func TestArgs(t *testing.T) {
	for args, want := range map[string][2]string{
		"--a=b c --etcd-password=x=y": {"--a=b c --etcd-password=[redacted]", "x=y"},
		"-token x --token":            {"-token [redacted] --token", "x"},
		"token=x psk y":               {"token=x psk y", ""},
		"--psk --ip-masq":             {"--psk [redacted]", "--ip-masq"}, // may be the value
	} {
		given := strings.Fields(args)
		shown, secrets := RedactArgs(given)
		if strings.Join(shown, " ") != want[0] || strings.Join(secrets, " ") != want[1] || !slices.Equal(given, strings.Fields(args)) {
			t.Errorf("%s: %q %q", args, shown, secrets)
		}
	}
}
