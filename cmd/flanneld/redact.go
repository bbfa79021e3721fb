package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"flannel/pkg/conf"
)

// redactor takes secrets out of texts: those that it knows, wherever they stand and in the encodings that they are
// often found in, and what looks like one.
type redactor struct {
	known []secret
	// keyed finds values behind a telling name in flags, variables, JSON, YAML and INI; flagged a flag whose value is
	// the next word.
	keyed, flagged *regexp.Regexp
	shapes         []shape
	// curve is a key as WireGuard writes it, 32 bytes in base64, and before it what tells a public one.
	curve *regexp.Regexp
}

// shape is a form by which a secret gives itself away.
type shape struct {
	is   *regexp.Regexp
	then string
}

func newRedactor() *redactor {
	var words []string
	for _, word := range conf.SecretWords() {
		words = append(words, strings.Join(strings.Split(word, ""), "[-_ ]?"))
	}
	name := `(?i)([a-z0-9_.-]*(?:` + strings.Join(words, "|") + `)[a-z0-9_.-]*)`
	return &redactor{
		keyed:   regexp.MustCompile(name + `("?[ \t]*[:=][ \t]*|"[ \t]+)(\[redacted\]|"(?:\\.|[^"\\])*"|'[^']*'|[^\s,;&}\]"']+)`),
		flagged: regexp.MustCompile(`(--?)` + name + `([ \t]+)([^\s-]\S*)`),
		curve:   regexp.MustCompile(`(?i)(public ?key\\?"?\s*[:=]\s*\\?"?)?\b[A-Za-z0-9+/]{43}=`),
		shapes: []shape{
			{regexp.MustCompile(`(?m)(\bname:[ \t]*["']?)` + name + `(["']?[ \t]*\n[ \t]*value:[ \t]*).*$`), "$1$2$3" + redacted}, // of YAML
			{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), redacted},
			{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`), redacted}, // RFC 7519
			{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.~=-]{6,}`), "$1 " + redacted},
			{regexp.MustCompile(`://[^/\s"']+@`), "://" + redacted + "@"},   // a password may have an @, too
			{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), redacted}, // "-----BEGIN " in base64, as in a kubeconfig
		},
	}
}

// leastSecret is the length from which on a known secret is looked for; shorter ones would hit ordinary words.
const leastSecret = 4

func (r *redactor) add(text string) {
	if text = strings.TrimSpace(text); len(text) < leastSecret {
		return
	}
	// Long ones first: of one that another begins with, the rest would be left.
	at, _ := slices.BinarySearchFunc(r.known, len(text), func(s secret, n int) int { return n - len(s.reveal()) })
	r.known = slices.Insert(r.known, at, newSecret(text))
}

// addFile knows a file's content: a key or a token.
func (r *redactor) addFile(path string) {
	if raw, err := os.ReadFile(path); err == nil && path != "" {
		r.add(string(raw))
		for line := range strings.Lines(string(raw)) { // of a PEM file, every line alone
			if len(line) >= 32 {
				r.add(line)
			}
		}
	}
}

// clean returns the text without secrets. Of JSON each string is cleaned by itself, for quoting hides what it is.
func (r *redactor) clean(text []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) == nil && !d.More() {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if enc.Encode(r.cleanValue(v)) == nil {
			return b.Bytes()
		}
	}
	return []byte(r.cleanText(string(text)))
}

func (r *redactor) cleanValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		named := secretPair(v)
		for key := range v {
			text, is := v[key].(string)
			switch {
			case conf.Secret(key), named && strings.EqualFold(key, "value"):
				v[key] = redacted // whatever it holds
			case is && strings.EqualFold(key, "PublicKey") && !strings.ContainsAny(text, " \n"):
				v[key] = r.cleanKnown(text) // nothing but its name tells it from a private one
			default:
				v[key] = r.cleanValue(v[key])
			}
		}
	case []any:
		for i := range v {
			if flag, is := v[max(0, i-1)].(string); i > 0 && is && strings.HasPrefix(flag, "-") && !strings.Contains(flag, "=") && conf.Secret(flag) {
				v[i] = redacted // of a command line
			} else {
				v[i] = r.cleanValue(v[i])
			}
		}
	case string:
		if strings.HasPrefix(strings.TrimSpace(v), "{") {
			return string(r.clean([]byte(v)))
		}
		return r.cleanText(v)
	}
	return v
}

// secretPair tells an object like {"name": "ETCD_PASSWORD", "value": …}, by which Kubernetes writes variables.
func secretPair(v map[string]any) bool {
	for key, name := range v {
		if text, is := name.(string); is && strings.EqualFold(key, "name") && conf.Secret(text) {
			return true
		}
	}
	return false
}

func (r *redactor) cleanKnown(s string) string {
	for _, known := range r.known {
		for _, form := range forms(known.reveal()) {
			s = strings.ReplaceAll(s, form, redacted)
		}
	}
	return s
}

func (r *redactor) cleanText(s string) string {
	s = r.cleanKnown(s)
	for _, shape := range r.shapes {
		s = shape.is.ReplaceAllString(s, shape.then)
	}
	s = r.curve.ReplaceAllStringFunc(s, func(found string) string {
		if strings.HasPrefix(strings.ToLower(found), "public") {
			return found
		}
		return redacted
	})
	s = r.keyed.ReplaceAllString(s, "$1$2"+redacted)
	return r.flagged.ReplaceAllString(s, "$1$2$3"+redacted)
}

// forms are the ways in which a secret is written.
func forms(s string) []string {
	quoted, _ := json.Marshal(s) // a string can always be marshalled
	return []string{s, strings.Trim(string(quoted), `"`), url.QueryEscape(s), base64.StdEncoding.EncodeToString([]byte(s))}
}

// secretsOf finds the values behind telling names in a text, to be looked for elsewhere.
func (r *redactor) secretsOf(text []byte) {
	for _, part := range r.keyed.FindAllSubmatch(text, -1) {
		r.add(strings.Trim(string(part[3]), `"'`))
	}
}
