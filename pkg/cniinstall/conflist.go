package cniinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// object is a JSON object. Its keys keep their order and its values their text, so that what others wrote stays as they
// wrote it: large numbers, the order of keys, unknown fields.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

func (o *object) UnmarshalJSON(text []byte) error {
	*o = nil
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("not a JSON object"), err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		m := member{key: key.(string)} // the decoder takes nothing else for a key
		if err := d.Decode(&m.value); err != nil {
			return err
		}
		if i := o.index(m.key); i >= 0 { // of a doubled key the last counts, as for Go's own decoder and so libcni
			*o = slices.Delete(*o, i, i+1)
		}
		*o = append(*o, m)
	}
	return nil
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o object) index(key string) int {
	return slices.IndexFunc(o, func(m member) bool { return m.key == key })
}

// get returns the value of a key, nil if there is none.
func (o object) get(key string) json.RawMessage {
	if i := o.index(key); i >= 0 {
		return o[i].value
	}
	return nil
}

// text is the string that a key has; empty if it has none.
func (o object) text(key string) (s string) {
	if json.Unmarshal(o.get(key), &s) != nil {
		return ""
	}
	return s
}

// conf is a network configuration: a list of plugins (.conflist), or a single one (.conf), whose plugins are nil.
type conf struct {
	object
	plugins []object
}

// mainPlugin is the type of plugin without which a configuration is not flannel's.
const mainPlugin = "flannel"

var errNotUsable = errors.New("not a CNI configuration")

// parseConf reads what a container runtime would accept; errNotUsable otherwise.
func parseConf(text []byte) (c conf, err error) {
	if err := json.Unmarshal(text, &c.object); err != nil {
		return conf{}, fmt.Errorf("%w: %w", errNotUsable, err)
	}
	if c.text("name") == "" {
		return conf{}, fmt.Errorf("%w: it has no name", errNotUsable)
	}
	list := c.get("plugins")
	if list == nil && c.text("type") != "" {
		return c, nil
	}
	if err := json.Unmarshal(list, &c.plugins); list == nil || err != nil {
		return conf{}, fmt.Errorf("%w: plugins is not a list of objects", errNotUsable)
	}
	if len(c.plugins) == 0 || slices.Contains(c.types(), "") {
		return conf{}, fmt.Errorf("%w: a plugin has no type, or there is no plugin", errNotUsable)
	}
	return c, nil
}

// types are those of its plugins, in their order.
func (c conf) types() (all []string) {
	if c.plugins == nil {
		return []string{c.text("type")}
	}
	for _, p := range c.plugins {
		all = append(all, p.text("type"))
	}
	return all
}

// main is the type of plugin that a file made from this configuration must have. A source that calls another plugin
// than flannel is left to its author.
func (c conf) main() string {
	if types := c.types(); !slices.Contains(types, mainPlugin) {
		return types[0]
	}
	return mainPlugin
}

// encode lays the configuration out for people.
func (c conf) encode() ([]byte, error) {
	text, err := json.MarshalIndent(c.object, "", "  ")
	return append(text, '\n'), err
}

// equal compares two JSON texts by what they say.
func equal(a, b json.RawMessage) bool {
	var values [2]any
	for i, text := range []json.RawMessage{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}
