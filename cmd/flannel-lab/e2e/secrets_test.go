package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// hides checks that secrets, by their names, are nowhere in what a node shows and publishes: command lines and environments of
// all processes, its log, its status and metrics, the doctor's results and bundle, and the leases. Nor is the beginning of a
// secret, nor the plain SHA-256 that 0.7 logged of ipsec. words are some that must be there, beside one of each source.
func hides(t *testing.T, l *lab.Lab, n *lab.Node, secrets map[string][]byte, words ...string) {
	t.Helper()
	leases, err := l.Leases(t.Context())
	must(t, err)
	run := func(command string) string { return shell(t, n.Namespaces, "%s", command) }
	seen := ""
	for _, source := range []struct{ word, text string }{ // a command may fail because of what it finds: the word must be there
		{"flanneld", run(`cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '`)},
		{"NODE_NAME=", run(`cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' ' '`)},
		{"level=INFO", run("cat /run/flanneld.log")},
		{n.IP4.String(), run(l.Flanneld() + " status || true")},
		{`"settings"`, run(l.Flanneld() + " status --json || true")},
		{"skipped", run("rm -f /run/bundle.tar.gz; " + l.Flanneld() + " doctor --bundle /run/bundle.tar.gz 2>&1 || true")},
		{`"subnetFile"`, run("rm -rf /run/bundle; mkdir /run/bundle; tar -xzf /run/bundle.tar.gz -C /run/bundle; find /run/bundle -type f -exec cat {} +")},
		{"flanneld_sync_seconds", run("curl -s --unix-socket /run/flannel/flanneld.sock http://flanneld/metrics")},
		{"PublicIP", fmt.Sprint(leases)},
	} {
		if !strings.Contains(source.text, source.word) {
			t.Errorf("%s does not show %q where the test looks: %.300s", n.Name, source.word, source.text)
		}
		seen += source.text
	}
	for _, word := range words {
		if !strings.Contains(seen, word) {
			t.Errorf("%s does not show %q anywhere", n.Name, word)
		}
	}
	for name, secret := range secrets {
		sum := sha256.Sum256(secret)
		// Less than 16 characters would be in enough random text by chance; 16 are the eight bytes that 0.7 logged, as hexadecimal.
		if shows(seen, secret, 20) || shows(seen, sum[:], 16) {
			t.Errorf("%s shows the %s or its digest", n.Name, name)
		}
	}
}

// shows reports whether text has the first characters of raw in one of the forms in which Go prints bytes.
func shows(text string, raw []byte, length int) bool {
	for _, form := range []string{
		string(raw), fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw), strings.Trim(fmt.Sprint(raw), "[]"), strings.Trim(fmt.Sprintf("%q", raw), `"`),
		base64.StdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw),
	} {
		if strings.Contains(text, form[:min(length, len(form))]) {
			return true
		}
	}
	return false
}
