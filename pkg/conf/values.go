package conf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The methods of this file return the value at key, or the default if the key
// is absent, null, or has an invalid value. In the last case, they add a
// problem.

// Bool returns the boolean at key.
func (o *Object) Bool(key string, def bool) bool {
	switch v := o.get(key).(type) {
	case nil:
	case bool:
		return v
	case string:
		if l := strings.ToLower(v); l == "true" || l == "false" {
			o.Problem(key, "%s is a string; remove the quotes", show(key, v))
			break
		}
		o.wrongKind(key, v, "true or false")
	default:
		o.wrongKind(key, v, "true or false")
	}
	return def
}

// Int returns the integer at key, which must be from min to max.
func (o *Object) Int(key string, def, min, max int) int {
	switch v := o.get(key).(type) {
	case nil:
	case json.Number:
		if n, ok := o.integer(key, string(v), min, max); ok {
			return n
		}
	case string:
		if _, err := strconv.Atoi(v); err == nil {
			o.Problem(key, "%s is a string; remove the quotes", show(key, v))
			break
		}
		o.wrongKind(key, v, fmt.Sprintf("an integer, %d to %d", min, max))
	default:
		o.wrongKind(key, v, fmt.Sprintf("an integer, %d to %d", min, max))
	}
	return def
}

// integer parses a JSON number, and adds a problem if it is no integer from min
// to max.
func (o *Object) integer(key, text string, min, max int) (int, bool) {
	n, err := strconv.Atoi(text) // the only possible error is that it does not fit an int
	outside := ""
	switch {
	case strings.ContainsAny(text, ".eE"):
		o.Problem(key, "%s is not an integer; use %d to %d", show(key, json.Number(text)), min, max)
		return 0, false
	case err != nil && text[0] == '-', err == nil && n < min:
		outside = fmt.Sprintf("below %d", min)
	case err != nil, n > max:
		outside = fmt.Sprintf("above %d", max)
	default:
		return n, true
	}
	o.Problem(key, "%s is %s; use %d to %d", show(key, json.Number(text)), outside, min, max)
	return 0, false
}

// String returns the string at key.
func (o *Object) String(key, def string) string {
	if s, ok := o.text(key, "a string, in quotes"); ok {
		return s
	}
	return def
}

// Secret returns the string at key, or no text. The key must be one of IsSecret, so that no
// message shows its value.
func (o *Object) Secret(key string) Secret { return NewSecret(o.String(key, "")) }

// Strings returns the list of strings at key; the default is nil. It omits
// other items.
func (o *Object) Strings(key string) []string {
	switch v := o.get(key).(type) {
	case nil:
	case []any:
		list := make([]string, 0, len(v))
		for i, e := range v {
			s, ok := e.(string)
			if !ok {
				o.wrongKind(fmt.Sprintf("%s[%d]", key, i), e, "a string, in quotes")
				continue
			}
			list = append(list, s)
		}
		return list
	default:
		o.wrongKind(key, v, `a list of strings, ["…", "…"]`)
	}
	return nil
}

// Prefix returns the network at key, including host bits; the default is zero.
func (o *Object) Prefix(key string) netip.Prefix {
	s, ok := o.text(key, "a network in quotes")
	if !ok {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(s)
	if err == nil {
		return p
	}
	if _, err := netip.ParseAddr(s); err == nil {
		o.Problem(key, "%s is an address; add the network's length, as in 10.5.0.0/16", show(key, s))
	} else {
		o.Problem(key, "%s is not a network; use one like 10.5.0.0/16 or fd05::/56", show(key, s))
	}
	return netip.Prefix{}
}

// Addr returns the IP address at key; the default is zero. An address with a
// zone is invalid.
func (o *Object) Addr(key string) netip.Addr {
	s, ok := o.text(key, "an address in quotes")
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() == "" {
		return a
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		o.Problem(key, "%s is a network; use an address, without the length", show(key, s))
	} else {
		o.Problem(key, "%s is not an address; use one like 10.5.1.0 or fd05:0:0:1::", show(key, s))
	}
	return netip.Addr{}
}

// text returns the string at key. want is the expected kind, for a problem.
func (o *Object) text(key, want string) (string, bool) {
	v := o.get(key)
	if v == nil {
		return "", false
	}
	s, ok := v.(string)
	if !ok {
		o.wrongKind(key, v, want)
	}
	return s, ok
}

// wrongKind adds the problem that a value is not of the expected kind.
func (o *Object) wrongKind(key string, v any, want string) {
	if v == nil { // an item of a list; elsewhere, null means absent
		o.Problem(key, "null; use %s", want)
		return
	}
	o.Problem(key, "%s is %s; use %s", show(key, v), kind(v), want)
}
