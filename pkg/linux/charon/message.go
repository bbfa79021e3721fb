// Package charon talks to charon, strongSwan's IKE daemon, by its control protocol
// VICI: connections, their secrets and their security associations. It also starts the
// daemon where nothing else runs it. VICI is documented in strongSwan's
// src/libcharon/plugins/vici/README.md. Its library for Go loses answers
// (Documentation/adr/0013-libraries-and-code-of-our-own.md). The driver of ipsec
// (ipsec_linux.go and ipsecike_linux.go in pkg/linux) calls this package.
package charon

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A message is the content of a packet, or one section of it.
type message []field

// A field is a named element of a message. Value is a string, a []string or a message.
type field struct {
	Name  string
	Value any
}

// text returns the string of that name; "": there is none.
func (m message) text(name string) string {
	text, _ := m.get(name).(string)
	return text
}

// list returns the list of that name; nil: there is none. A value of another type counts as none,
// in text, list and section.
func (m message) list(name string) []string {
	list, _ := m.get(name).([]string)
	return list
}

// section returns the section of that name; nil: there is none.
func (m message) section(name string) message {
	section, _ := m.get(name).(message)
	return section
}

// get returns the value of the first field of that name; nil: there is none.
func (m message) get(name string) any {
	for _, f := range m {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

// Types of elements.
const (
	sectionStart = 1 + iota
	sectionEnd
	keyValue
	listStart
	listItem
	listEnd
)

// errTooLong is the error of a name or value that has no place in its length field.
var errTooLong = errors.New("a name or value is too long for VICI")

// appendMessage appends the encoded message to b. A section is encoded like a message,
// between a start with its name and an end.
func appendMessage(b []byte, m message) (_ []byte, err error) {
	for _, f := range m {
		switch v := f.Value.(type) {
		case string:
			if b, err = appendName(append(b, keyValue), f.Name); err == nil {
				b, err = appendValue(b, v)
			}
		case []string:
			b, err = appendName(append(b, listStart), f.Name)
			for _, item := range v {
				if err == nil {
					b, err = appendValue(append(b, listItem), item)
				}
			}
			b = append(b, listEnd)
		case message:
			if b, err = appendName(append(b, sectionStart), f.Name); err == nil {
				b, err = appendMessage(b, v)
			}
			b = append(b, sectionEnd)
		default:
			err = fmt.Errorf("%s has a value of type %T, which VICI does not have", f.Name, v)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// appendName appends a name after its length, one byte.
func appendName(b []byte, s string) ([]byte, error) {
	if len(s) > 1<<8-1 {
		return nil, errTooLong
	}
	return append(append(b, byte(len(s))), s...), nil
}

// appendValue appends a value after its length, two bytes.
func appendValue(b []byte, s string) ([]byte, error) {
	if len(s) > 1<<16-1 {
		return nil, errTooLong
	}
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...), nil
}

// errMalformed is the error of a packet that is not one of VICI.
var errMalformed = errors.New("malformed packet")

// decoder reads a message from its bytes, which come from another process: each length is checked.
type decoder struct{ rest []byte }

// maxDepth bounds the sections within sections; charon has four.
const maxDepth = 16

// message reads up to the end of a section or, at depth 0, of the bytes.
func (d *decoder) message(depth int) (m message, err error) {
	if depth > maxDepth {
		return nil, errMalformed
	}
	for len(d.rest) > 0 {
		kind := d.rest[0]
		d.rest = d.rest[1:]
		if kind == sectionEnd && depth > 0 {
			return m, nil
		}
		f := field{}
		if f.Name, err = d.name(); err != nil {
			return nil, err
		}
		switch kind {
		case keyValue:
			f.Value, err = d.value()
		case listStart:
			f.Value, err = d.list()
		case sectionStart:
			f.Value, err = d.message(depth + 1)
		default:
			err = errMalformed
		}
		if err != nil {
			return nil, err
		}
		m = append(m, f)
	}
	if depth > 0 {
		return nil, errMalformed
	}
	return m, nil
}

// list reads up to the end of a list.
func (d *decoder) list() ([]string, error) {
	items := []string{}
	for len(d.rest) > 0 {
		kind := d.rest[0]
		d.rest = d.rest[1:]
		if kind == listEnd {
			return items, nil
		}
		item, err := d.value()
		if kind != listItem || err != nil {
			return nil, errMalformed
		}
		items = append(items, item)
	}
	return nil, errMalformed
}

// name reads a name.
func (d *decoder) name() (string, error) {
	if len(d.rest) < 1 {
		return "", errMalformed
	}
	return d.take(1, int(d.rest[0]))
}

// value reads a value.
func (d *decoder) value() (string, error) {
	if len(d.rest) < 2 {
		return "", errMalformed
	}
	return d.take(2, int(binary.BigEndian.Uint16(d.rest)))
}

// take reads n bytes after a length field of some bytes.
func (d *decoder) take(field, n int) (string, error) {
	if len(d.rest) < field+n {
		return "", errMalformed
	}
	text := string(d.rest[field : field+n])
	d.rest = d.rest[field+n:]
	return text, nil
}
