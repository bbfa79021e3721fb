package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	maxSize  = 1 << 20 // of the text in bytes; etcd and ConfigMaps have about the same limit
	maxDepth = 16      // of nested objects and lists
)

// Parse parses a text that must be one JSON object. If it is not, Parse returns
// an empty object whose Err is the reason.
func Parse(raw []byte) *Object {
	o := newObject(&tree{}, "")
	raw = bytes.TrimPrefix(raw, []byte("\ufeff")) // byte order mark, which editors on Windows write
	if err := check(raw); err != nil {
		return o.broken(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return o.broken(fmt.Errorf("the text is %s; write an object, {…}", kind(first)))
	}
	if err := o.fill(d, 1); err != nil {
		return o.broken(err)
	}
	return o
}

// broken returns an empty object whose only problem is err. Its tree is new, so that nothing
// that was read before counts.
func (o *Object) broken(err error) *Object {
	b := newObject(&tree{}, o.path)
	b.Problem("", "%v", err)
	b.tree.broken = true
	return b
}

// check returns an error with line and column if the text has a syntax error,
// including trailing data.
func check(raw []byte) error {
	switch {
	case len(raw) > maxSize:
		return fmt.Errorf("the text has %d bytes; use at most %d", len(raw), maxSize)
	case len(bytes.TrimSpace(raw)) == 0:
		return errors.New("the text is empty; write an object, {…}")
	case bytes.HasPrefix(raw, []byte("\xff\xfe")), bytes.HasPrefix(raw, []byte("\xfe\xff")):
		return errors.New("the text is UTF-16; save it as UTF-8")
	}
	err := json.Unmarshal(raw, new(json.RawMessage))
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	// Offset is the number of bytes up to and including the wrong one, or the
	// length of the text if it ends too early.
	at := max(0, min(int(syntax.Offset)-1, len(raw)))
	line := 1 + bytes.Count(raw[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(raw[bytes.LastIndexByte(raw[:at], '\n')+1:at])
	return fmt.Errorf("line %d, column %d: %w%s", line, column, err, advice(raw, at))
}

// advice returns what to do about the two most common mistakes, given the
// position of the wrong byte: the last one, if the text ends too early. raw is not empty.
func advice(raw []byte, at int) string {
	before := bytes.TrimRight(raw[:at], " \t\r\n")
	switch c := raw[at]; {
	case c == '#' || c == '/':
		return "; JSON has no comments, remove it"
	case (c == '}' || c == ']') && bytes.HasSuffix(before, []byte(",")):
		return "; remove the comma before it"
	}
	return ""
}

// fill reads the members of o up to the closing brace. The opening one has been
// read, and the syntax has been checked.
func (o *Object) fill(d *json.Decoder, depth int) error {
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string)
		value, err := o.value(d, o.join(name), depth+1)
		if err != nil {
			return err
		}
		o.set(name, value)
	}
	_, err := d.Token()
	return err
}

// value reads the value of a member of o, or of an item of a list in o, with
// its path. depth is that of the value.
func (o *Object) value(d *json.Decoder, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("objects and lists are nested more than %d deep", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		child := newObject(o.tree, path)
		return child, child.fill(d, depth)
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := o.value(d, fmt.Sprintf("%s[%d]", path, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return token, nil
}
