// Package conf reads a JSON object that people wrote: keys without regard to case, all problems at once, each with
// path, value and fix; unknown and duplicate keys as warnings.
//
// A reader asks for every key that it knows and gets a usable value in any case; what was wrong is collected, and
// asked for at the end by Err and Warnings.
package conf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxReports bounds problems and warnings: whoever made more than these needs no list.
const maxReports = 100

// Object is one JSON object of a configuration. It is for one goroutine.
type Object struct {
	tree    *tree
	path    string             // "" for the outermost, else "Backend"
	members map[string]*member // by folded key
	order   []*member          // as written
	known   map[string]string  // folded key → as the reader spells it
	names   []string           // the values of known, in the order of reading
	reads   []*Object          // objects within that were asked for
	said    []string           // warnings of the reader
}

type member struct {
	key   string // as written
	count int    // how often it was given
	value any    // nil, bool, json.Number, string, []any or *Object
}

// tree is what all objects of one text share.
type tree struct {
	problems []string
	more     int  // problems beyond maxReports
	broken   bool // nothing could be read: what is missing then is no problem of its own
}

// Has tells whether key is there with a value other than null. It counts as reading the key.
func (o *Object) Has(key string) bool { return o.get(key) != nil }

// Object returns the object at key. It is never nil: one that is absent is empty, and its problems carry its path.
func (o *Object) Object(key string) *Object {
	switch v := o.get(key).(type) {
	case *Object:
		if !slices.Contains(o.reads, v) {
			o.reads = append(o.reads, v)
		}
		return v
	case nil:
	default:
		o.wrongKind(key, v, "an object, {…}")
	}
	return newObject(o.tree, o.join(key))
}

// Ignore names keys that are known but mean nothing here, as those of another operating system: no warning.
func (o *Object) Ignore(keys ...string) {
	for _, k := range keys {
		o.get(k)
	}
}

// Problem adds a problem at key; "" means the object itself. The caller sees to it that no secret is in the text.
func (o *Object) Problem(key, format string, args ...any) {
	t := o.tree
	text := oneLine(fmt.Sprintf(format, args...))
	if path := o.join(key); path != "" {
		text = path + ": " + text
	}
	switch {
	case t.broken, slices.Contains(t.problems, text): // a key may be read more than once
	case len(t.problems) >= maxReports:
		t.more++
	default:
		t.problems = append(t.problems, text)
	}
}

// Warn adds a warning at key: the value is possible, and most likely not what was meant.
func (o *Object) Warn(key, format string, args ...any) {
	o.said = append(o.said, o.join(key)+": "+oneLine(fmt.Sprintf(format, args...)))
}

// Err joins all problems of the whole text in the order of their discovery, one a line; nil if there are none.
func (o *Object) Err() error {
	var all []error
	for _, text := range o.tree.problems {
		all = append(all, errors.New(text))
	}
	if o.tree.more > 0 {
		all = append(all, fmt.Errorf("and %d more", o.tree.more))
	}
	return errors.Join(all...)
}

// Warnings lists what is likely a mistake but does no harm: keys nobody asked for, keys given more than once, and
// what Warn was told.
// It speaks of this object and of those within it that were asked for; call it after everything was read.
func (o *Object) Warnings() []string {
	all := o.warnings(nil)
	if n := len(all) - maxReports; n > 0 {
		all = append(all[:maxReports], fmt.Sprintf("and %d more", n))
	}
	return all
}

func (o *Object) warnings(all []string) []string {
	for _, m := range o.order {
		path := o.join(m.key)
		_, known := o.known[fold(m.key)]
		switch {
		case known && m.count > 1:
			all = append(all, fmt.Sprintf("%s: given %d times, the last one counts", path, m.count))
		case known:
		case len(all) > maxReports:
			all = append(all, "") // only counted
		default:
			text := path + ": unknown key"
			if near := Nearest(m.key, o.names); near != "" {
				text += ", did you mean " + near + "?"
			}
			all = append(all, text)
		}
	}
	all = append(all, o.said...)
	for _, child := range o.reads {
		all = child.warnings(all)
	}
	return all
}

func newObject(t *tree, path string) *Object {
	return &Object{tree: t, path: path, members: map[string]*member{}, known: map[string]string{}}
}

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

// get returns the value at key, nil when it is absent or null, and notes that the key is known.
func (o *Object) get(key string) any {
	f := fold(key)
	if _, ok := o.known[f]; !ok {
		o.known[f] = key
		o.names = append(o.names, key)
	}
	if m := o.members[f]; m != nil {
		return m.value
	}
	return nil
}

func (o *Object) join(key string) string {
	key = showKey(key)
	if o.path == "" || key == "" {
		return o.path + key
	}
	return o.path + "." + key
}

// fold makes keys that differ in case alone equal, also in letters like the Kelvin sign, as encoding/json does.
func fold(key string) string { return strings.ToLower(strings.ToUpper(key)) }
