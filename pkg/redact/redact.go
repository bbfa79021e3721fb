// Package redact keeps secrets out of what people and logs get to see: it knows them by the names of flags, variables and
// keys, by their form, and by their value where that is known.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Redactor takes secrets out of texts: those that it knows, wherever they stand and in the encodings that they are
// often found in, and what looks like one.
type Redactor struct {
	known []Secret
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

// New returns a Redactor that knows no secret by its value yet.
func New() *Redactor {
	var words []string
	for _, word := range secretWords() {
		words = append(words, strings.Join(strings.Split(word, ""), "[-_ ]?"))
	}
	name := `(?i)([a-z0-9_.-]*(?:` + strings.Join(words, "|") + `)[a-z0-9_.-]*)`
	return &Redactor{
		keyed:   regexp.MustCompile(name + `("?[ \t]*[:=][ \t]*|"[ \t]+)(\[redacted\]|"(?:\\.|[^"\\])*"|'[^']*'|[^\s,;&}\]"']+)`),
		flagged: regexp.MustCompile(`(--?)` + name + `([ \t]+)([^\s-]\S*)`),
		curve:   regexp.MustCompile(`(?i)(public ?key\\?"?\s*[:=]\s*\\?"?)?\b[A-Za-z0-9+/]{43}=`),
		shapes: []shape{
			{regexp.MustCompile(`(?m)(\bname:[ \t]*["']?)` + name + `(["']?[ \t]*\n[ \t]*value:[ \t]*).*$`), "$1$2$3" + Mark}, // of YAML
			{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), Mark},
			{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`), Mark}, // RFC 7519
			{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.~=-]{6,}`), "$1 " + Mark},
			{regexp.MustCompile(`://[^/\s"']+@`), "://" + Mark + "@"},   // a password may have an @, too
			{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), Mark}, // "-----BEGIN " in base64, as in a kubeconfig
		},
	}
}

// leastSecret is the length from which on a known secret is looked for; shorter ones would hit ordinary words.
const leastSecret = 4

// Add makes a secret known by its value.
func (r *Redactor) Add(text string) {
	if text = strings.TrimSpace(text); len(text) < leastSecret {
		return
	}
	// Long ones first: of one that another begins with, the rest would be left.
	at, _ := slices.BinarySearchFunc(r.known, len(text), func(s Secret, n int) int { return n - len(s.Reveal()) })
	r.known = slices.Insert(r.known, at, NewSecret(text))
}

// AddFile makes known a file's content: a key or a token.
func (r *Redactor) AddFile(path string) {
	if raw, err := os.ReadFile(path); err == nil && path != "" {
		r.Add(string(raw))
		for line := range strings.Lines(string(raw)) { // of a PEM file, every line alone
			if len(line) >= 32 {
				r.Add(line)
			}
		}
	}
}

// Clean returns the text without secrets. Of JSON each string is cleaned by itself, for quoting hides what it is.
func (r *Redactor) Clean(text []byte) []byte {
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

func (r *Redactor) cleanValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		named := secretPair(v)
		for key := range v {
			text, is := v[key].(string)
			switch {
			case IsSecret(key), named && strings.EqualFold(key, "value"):
				v[key] = Mark // whatever it holds
			case is && strings.EqualFold(key, "PublicKey") && !strings.ContainsAny(text, " \n"):
				v[key] = r.cleanKnown(text) // nothing but its name tells it from a private one
			default:
				v[key] = r.cleanValue(v[key])
			}
		}
	case []any:
		for i := range v {
			if flag, is := v[max(0, i-1)].(string); i > 0 && is && strings.HasPrefix(flag, "-") && !strings.Contains(flag, "=") && IsSecret(flag) {
				v[i] = Mark // of a command line
			} else {
				v[i] = r.cleanValue(v[i])
			}
		}
	case string:
		if strings.HasPrefix(strings.TrimSpace(v), "{") {
			return string(r.Clean([]byte(v)))
		}
		return r.cleanText(v)
	}
	return v
}

// secretPair tells an object like {"name": "ETCD_PASSWORD", "value": …}, by which Kubernetes writes variables.
func secretPair(v map[string]any) bool {
	for key, name := range v {
		if text, is := name.(string); is && strings.EqualFold(key, "name") && IsSecret(text) {
			return true
		}
	}
	return false
}

func (r *Redactor) cleanKnown(s string) string {
	for _, known := range r.known {
		for _, form := range forms(known.Reveal()) {
			s = strings.ReplaceAll(s, form, Mark)
		}
	}
	return s
}

func (r *Redactor) cleanText(s string) string {
	s = r.cleanKnown(s)
	for _, shape := range r.shapes {
		s = shape.is.ReplaceAllString(s, shape.then)
	}
	s = r.curve.ReplaceAllStringFunc(s, func(found string) string {
		if strings.HasPrefix(strings.ToLower(found), "public") {
			return found
		}
		return Mark
	})
	s = r.keyed.ReplaceAllString(s, "$1$2"+Mark)
	return r.flagged.ReplaceAllString(s, "$1$2$3"+Mark)
}

// forms are the ways in which a secret is written.
func forms(s string) []string {
	quoted, _ := json.Marshal(s) // a string can always be marshalled
	return []string{s, strings.Trim(string(quoted), `"`), url.QueryEscape(s), base64.StdEncoding.EncodeToString([]byte(s))}
}

// AddKeyed makes known the values behind telling names in a text, to be looked for elsewhere.
func (r *Redactor) AddKeyed(text []byte) {
	for _, part := range r.keyed.FindAllSubmatch(text, -1) {
		r.Add(strings.Trim(string(part[3]), `"'`))
	}
}
