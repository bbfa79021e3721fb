// Package conf reads a JSON object that a person wrote. Keys are compared
// without regard to case. Err returns all problems at once, each with the path,
// the value and what to write instead. Warnings returns unknown and duplicate
// keys.
//
// The caller gets the value of each key that it knows, by methods like Int, and
// after that calls Err and Warnings:
//
//	o := conf.Parse([]byte(`{"Backend": {"VNI": "7", "Prot": 8472}}`))
//	vni := o.Object("backend").Int("VNI", 1, 1, 100) // 1, the default
//	port := o.Object("backend").Int("Port", 0, 0, 65535) // 0, the default
//	o.Err()      // Backend.VNI: "7" is a string; remove the quotes
//	o.Warnings() // Backend.Prot: unknown key, did you mean Port?
//
// Beside JSON, people write command lines and environments: a table of flags whose values are
// validated together (flags.go). What they write may be secret: Secret prints no text.
package conf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxReports limits the number of problems, and the number of warnings. Beyond
// it, they are only counted.
const maxReports = 100

// Object is a JSON object. It must not be used by several goroutines at the
// same time. Several packages may read one object: subnet, and then a backend, read the
// network configuration.
type Object struct {
	tree     *tree
	path     string             // for example "Backend"; "": it is the outermost object
	members  map[string]*member // by folded key
	order    []*member          // as in the text
	known    map[string]bool    // folded keys that the caller has read
	names    []string           // the same keys, in the caller's spelling and order
	children []*Object          // that the caller has read
	warned   []string           // by Warn
}

// member is a key with its value.
type member struct {
	key   string // in the spelling of the text
	count int    // of occurrences
	value any    // nil, bool, json.Number, string, []any or *Object
}

// tree is shared by all objects of a text.
type tree struct {
	problems []string
	more     int  // problems beyond maxReports
	broken   bool // the text could not be parsed; missing keys are not reported then
}

// Has reports whether key has a value other than null. As with all methods that
// read a key, the key is known afterwards.
func (o *Object) Has(key string) bool { return o.get(key) != nil }

// Object returns the object at key. If there is none, it returns an empty
// object with that path.
func (o *Object) Object(key string) *Object {
	switch v := o.get(key).(type) {
	case *Object:
		if !slices.Contains(o.children, v) {
			o.children = append(o.children, v)
		}
		return v
	case nil:
	default:
		o.wrongKind(key, v, "an object, {…}")
	}
	return newObject(o.tree, o.join(key))
}

// Ignore makes keys known that have no meaning here, such as those of another
// operating system.
func (o *Object) Ignore(keys ...string) {
	for _, k := range keys {
		o.get(k)
	}
}

// Problem adds a problem with the value at key, or with the object itself if
// key is "". The text must not contain secrets.
func (o *Object) Problem(key, format string, args ...any) {
	t := o.tree
	text := oneLine(fmt.Sprintf(format, args...))
	if path := o.join(key); path != "" {
		text = path + ": " + text
	}
	switch {
	case t.broken, slices.Contains(t.problems, text): // the problem of a broken text is known; a key may be read more than once
	case len(t.problems) >= maxReports:
		t.more++
	default:
		t.problems = append(t.problems, text)
	}
}

// Warn adds a warning about the value at key: it is valid, but probably a
// mistake.
func (o *Object) Warn(key, format string, args ...any) {
	o.warned = append(o.warned, o.join(key)+": "+oneLine(fmt.Sprintf(format, args...)))
}

// Err returns all problems of the whole text, one per line, in the order in
// which they were found; nil: there are none.
func (o *Object) Err() error {
	var errs []error
	for _, text := range o.tree.problems {
		errs = append(errs, errors.New(text))
	}
	if o.tree.more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", o.tree.more))
	}
	return errors.Join(errs...)
}

// Warnings returns probable mistakes in this object and in those of its objects
// that were read: unknown keys, duplicate keys, and the warnings of Warn. The
// caller must have read all keys before.
func (o *Object) Warnings() []string {
	warnings := o.appendWarnings(nil)
	if n := len(warnings) - maxReports; n > 0 {
		warnings = append(warnings[:maxReports], fmt.Sprintf("and %d more", n))
	}
	return warnings
}

// appendWarnings appends the warnings of this object and of those in it.
func (o *Object) appendWarnings(warnings []string) []string {
	for _, m := range o.order {
		path := o.join(m.key)
		known := o.known[fold(m.key)]
		switch {
		case known && m.count > 1:
			warnings = append(warnings, fmt.Sprintf("%s: given %d times, the last value is used", path, m.count))
		case known:
		case len(warnings) > maxReports:
			warnings = append(warnings, "") // only counted, which saves calls of nearest
		default:
			text := path + ": unknown key"
			if near := nearest(m.key, o.names); near != "" {
				text += ", did you mean " + near + "?"
			}
			warnings = append(warnings, text)
		}
	}
	warnings = append(warnings, o.warned...)
	for _, child := range o.children {
		warnings = child.appendWarnings(warnings)
	}
	return warnings
}

// newObject returns an empty object of a text.
func newObject(t *tree, path string) *Object {
	return &Object{tree: t, path: path, members: map[string]*member{}, known: map[string]bool{}}
}

// set sets the value at key; of several values, the last one stays.
func (o *Object) set(key string, value any) {
	m := o.members[fold(key)]
	if m == nil {
		m = &member{}
		o.members[fold(key)] = m
		o.order = append(o.order, m)
	}
	m.key, m.value = key, value
	m.count++
}

// get makes the key known, and returns its value; nil: it is absent or null.
func (o *Object) get(key string) any {
	folded := fold(key)
	if !o.known[folded] {
		o.known[folded] = true
		o.names = append(o.names, key)
	}
	if m := o.members[folded]; m != nil {
		return m.value
	}
	return nil
}

// join returns the path of a key, for messages.
func (o *Object) join(key string) string {
	key = showKey(key)
	if o.path == "" || key == "" {
		return o.path + key
	}
	return o.path + "." + key
}

// fold returns the same text for keys that differ only in case. Like
// encoding/json, it also maps letters such as the Kelvin sign, whose lower case
// is k.
func fold(key string) string { return strings.ToLower(strings.ToUpper(key)) }
