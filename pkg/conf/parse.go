package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	maxSize  = 1 << 20 // bytes; etcd and ConfigMaps hold no more either
	maxDepth = 16      // objects and lists within each other
)

// Parse reads a text that must be one JSON object. The result is never nil: where nothing could be read, the object
// is empty, and its Err says why and nothing else.
func Parse(raw []byte) *Object {
	o := newObject(&tree{}, "")
	// Editors on Windows like to begin a file with a byte order mark.
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if err := check(raw); err != nil {
		return o.broken(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return o.broken(fmt.Errorf("this is %s; write an object, {…}", kind(first)))
	}
	if err := o.fill(d, 1); err != nil {
		return o.broken(err)
	}
	return o
}

func (o *Object) broken(err error) *Object {
	b := newObject(&tree{}, o.path)
	b.Problem("", "%v", err)
	b.tree.broken = true
	return b
}

// check finds syntax errors, trailing data included, and tells where they are.
func check(raw []byte) error {
	switch {
	case len(raw) > maxSize:
		return fmt.Errorf("the text has %d bytes; use at most %d", len(raw), maxSize)
	case len(bytes.TrimSpace(raw)) == 0:
		return errors.New("the text is empty; write an object, {…}")
	case bytes.HasPrefix(raw, []byte("\xff\xfe")), bytes.HasPrefix(raw, []byte("\xfe\xff")):
		return errors.New("the text is UTF-16; save it as UTF-8")
	}
	var all json.RawMessage
	err := json.Unmarshal(raw, &all)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	// Offset counts the bytes read, the wrong one included, but for an unexpected end.
	at := max(0, min(int(syntax.Offset)-1, len(raw)))
	line := 1 + bytes.Count(raw[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(raw[bytes.LastIndexByte(raw[:at], '\n')+1:at])
	return fmt.Errorf("line %d, column %d: %w%s", line, column, err, advice(raw, at))
}

// advice names the fix for the two mistakes that people make most.
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

// fill reads the members of an object whose opening brace has been read. Syntax was checked before.
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

func (o *Object) value(d *json.Decoder, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d objects or lists within each other", maxDepth)
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
