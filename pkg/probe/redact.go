package probe

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"flannel/pkg/conf"
)

// A redactor removes secrets from text. It recognizes them by
//
//   - their value, if it was added: a token that is also in a log line,
//   - the name before them: password, token, psk in flags, variables, JSON, YAML, INI,
//   - their form: a PEM private key, a JWT, user:password@ in a URL, a WireGuard key.
//
// Create it with newRedactor.
type redactor struct {
	known []conf.Secret // values that were added, the longest first; a Secret is never printed
	// keyed matches a secret name, a separator and a value (name=value, "name": "value");
	// flagged a flag with a secret name whose value is the next word (-name value).
	keyed, flagged *regexp.Regexp
	shapes         []shape
	// wireGuardKey matches a key of WireGuard, 32 bytes in base64, with the words "public
	// key" if they are before it.
	wireGuardKey *regexp.Regexp
}

// shape is a form of secrets, with the replacement for a match.
type shape struct {
	pattern     *regexp.Regexp
	replacement string
}

// newRedactor returns a redactor without known values.
func newRedactor() *redactor {
	var words []string
	for _, word := range conf.SecretWords() { // "apikey" also matches api-key and api_key
		words = append(words, strings.Join(strings.Split(word, ""), "[-_ ]?"))
	}
	name := `(?i)([a-z0-9_.-]*(?:` + strings.Join(words, "|") + `)[a-z0-9_.-]*)`
	return &redactor{
		keyed:        regexp.MustCompile(name + `("?[ \t]*[:=][ \t]*|"[ \t]+)(\[redacted\]|"(?:\\.|[^"\\])*"|'[^']*'|[^\s,;&}\]"']+)`),
		flagged:      regexp.MustCompile(`(--?)` + name + `([ \t]+)([^\s-]\S*)`),
		wireGuardKey: regexp.MustCompile(`(?i)(public ?key\\?"?\s*[:=]\s*\\?"?)?\b[A-Za-z0-9+/]{43}=`),
		shapes: []shape{
			{regexp.MustCompile(`(?m)(\bname:[ \t]*["']?)` + name + `(["']?[ \t]*\n[ \t]*value:[ \t]*).*$`), "$1$2$3" + conf.Redacted}, // a variable in YAML
			{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), conf.Redacted},
			{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`), conf.Redacted}, // JSON Web Token, RFC 7519
			{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.~=-]{6,}`), "$1 " + conf.Redacted},
			{regexp.MustCompile(`://[^/\s"']+@`), "://" + conf.Redacted + "@"}, // greedy: a password may contain an @
			// A digest of the secret of IPsec, which flanneld up to version 0.7 has logged of a changed connection.
			{regexp.MustCompile(`( was changed to \{[^\[\n]*)\[(?:\d{1,3} ){7}\d{1,3}\]`), "$1" + conf.Redacted},
			{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), conf.Redacted}, // "-----BEGIN " in base64, as in a kubeconfig
		},
	}
}

// minSecret is the minimum length of a known secret. A shorter one would also match
// in ordinary words.
const minSecret = 4

// add adds the value of a secret.
func (r *redactor) add(text string) {
	if text = strings.TrimSpace(text); len(text) < minSecret {
		return
	}
	// The longest first: if a shorter one is its beginning, the rest would stay.
	at, _ := slices.BinarySearchFunc(r.known, len(text), func(s conf.Secret, n int) int { return n - len(s.Reveal()) })
	if secret := conf.NewSecret(text); !slices.Contains(r.known, secret) {
		r.known = slices.Insert(r.known, at, secret)
	}
}

// addFile adds the content of a file with a key or a token. A file that cannot be
// read is ignored, as is the path "".
func (r *redactor) addFile(path string) {
	if raw, err := os.ReadFile(path); err == nil && path != "" {
		r.addLines(string(raw))
	}
}

// addLines adds the content of a file, and each line of a PEM file that is no ordinary word.
func (r *redactor) addLines(text string) {
	r.add(text)
	for line := range strings.Lines(text) {
		if len(line) >= 32 {
			r.add(line)
		}
	}
}

// clean returns the text without secrets. If the text is JSON, each string is
// unquoted and cleaned separately, because quoting changes secrets; the result is
// indented.
func (r *redactor) clean(text []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) == nil && !d.More() { // the text is one JSON value
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

// cleanValue returns a value of JSON without secrets. It changes maps and lists in place.
func (r *redactor) cleanValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		secretVar := isSecretVariable(v)
		for key := range v {
			text, isString := v[key].(string)
			switch {
			case conf.IsSecret(key), secretVar && strings.EqualFold(key, "value"):
				v[key] = conf.Redacted // also a number or an object
			case isString && strings.EqualFold(key, "PublicKey") && !strings.ContainsAny(text, " \n"):
				v[key] = r.cleanKnown(text) // has the form of a private key
			default:
				v[key] = r.cleanValue(v[key])
			}
		}
	case []any:
		for i := range v {
			// In a command line, the element before may be a flag with a secret value.
			flag, isString := v[max(0, i-1)].(string)
			if i > 0 && isString && strings.HasPrefix(flag, "-") && !strings.Contains(flag, "=") && conf.IsSecret(flag) {
				v[i] = conf.Redacted
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

// isSecretVariable reports whether an object is a variable as in a Pod, with a secret
// value: {"name": "ETCD_PASSWORD", "value": …}.
func isSecretVariable(v map[string]any) bool {
	for key, name := range v {
		if text, isString := name.(string); isString && strings.EqualFold(key, "name") && conf.IsSecret(text) {
			return true
		}
	}
	return false
}

// cleanKnown removes only the known values.
func (r *redactor) cleanKnown(s string) string {
	for _, known := range r.known {
		for _, form := range forms(known.Reveal()) {
			s = strings.ReplaceAll(s, form, conf.Redacted)
		}
	}
	return s
}

// cleanText removes known values first, then what has the form of a secret, and then what
// follows the name of a secret.
func (r *redactor) cleanText(s string) string {
	s = r.cleanKnown(s)
	for _, shape := range r.shapes {
		s = shape.pattern.ReplaceAllString(s, shape.replacement)
	}
	s = r.wireGuardKey.ReplaceAllStringFunc(s, func(found string) string {
		if strings.HasPrefix(strings.ToLower(found), "public") {
			return found
		}
		return conf.Redacted
	})
	s = r.keyed.ReplaceAllString(s, "$1$2"+conf.Redacted)
	return r.flagged.ReplaceAllString(s, "$1$2$3"+conf.Redacted)
}

// forms returns a secret as it is, as in JSON, quoted once and twice as in an error in a log line, as in a URL, and in base64.
func forms(s string) []string {
	inJSON, _ := json.Marshal(s) // does not fail for a string
	quote := func(s string) string {
		quoted := strconv.Quote(s)
		return quoted[1 : len(quoted)-1]
	}
	return []string{s, string(inJSON[1 : len(inJSON)-1]), quote(s), quote(quote(s)), url.QueryEscape(s), base64.StdEncoding.EncodeToString([]byte(s))}
}

// addKeyed adds the values after secret names in a text. Then they are also removed
// where another text has them without the name.
func (r *redactor) addKeyed(text []byte) {
	for _, part := range r.keyed.FindAllSubmatch(text, -1) {
		r.add(strings.Trim(string(part[3]), `"'`))
		var text string
		if json.Unmarshal(part[3], &text) == nil { // without escapes
			r.add(text)
		}
	}
}

// redactEnviron replaces the values of secret variables in an environment, which has the
// form of os.Environ.
func redactEnviron(environ []string) (shown []string) {
	shown = slices.Clone(environ)
	for i, e := range shown {
		if name, _, _ := strings.Cut(e, "="); conf.IsSecret(name) {
			shown[i] = name + "=" + conf.Redacted
		}
	}
	return shown
}

// nextURL matches the beginning of another URL in a list.
var nextURL = regexp.MustCompile(`(?i)[,\s][a-z]+://`)

// addURL adds the passwords of the URLs in a text, such as that of a flag. If special characters of a password are not
// percent-encoded, it may go on where the URL seems to have a path: up to the last @. The error of net/url quotes the URL, at
// most up to a #, and what it takes for the port.
func (r *redactor) addURL(text string) {
	for line := range strings.FieldsFuncSeq(text, unicode.IsControl) {
		_, urls, _ := strings.Cut(line, "://")
		for _, u := range nextURL.Split(urls, -1) {
			password := passwordIn(u)
			parts := []string{password, passwordIn(upTo(u, "/?#"))}
			port := upTo(password, "/?#")
			ports := strings.FieldsFunc(port, func(c rune) bool { return c == ':' || c == '@' })
			for _, part := range append(ports, port, upTo(password, "#")) {
				if strings.Trim(part, "0123456789") != "" { // else it may be a port indeed
					parts = append(parts, part)
				}
			}
			for _, part := range parts {
				r.add(part)
				decoded, _ := url.PathUnescape(part) // an error: ""
				r.add(decoded)
			}
		}
	}
}

// passwordIn returns the password of a URL without its scheme, if it ends at the last @.
func passwordIn(u string) string {
	_, password, _ := strings.Cut(u[:max(0, strings.LastIndex(u, "@"))], ":")
	return password
}

// upTo returns the beginning of a text up to the first of some characters.
func upTo(text, ends string) string {
	if i := strings.IndexAny(text, ends); i >= 0 {
		return text[:i]
	}
	return text
}

// addSettings adds the values of secret flags and variables, and the passwords of URLs in the others.
func (r *redactor) addSettings(args, environ []string) {
	_, secrets := conf.RedactArgs(args)
	for _, s := range secrets {
		r.add(s.Reveal())
	}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); conf.IsSecret(name) {
			r.add(value)
		}
	}
	for _, text := range slices.Concat(args, environ) {
		r.addURL(text)
	}
}
