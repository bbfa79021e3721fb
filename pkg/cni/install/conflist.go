// This file parses and encodes configurations so that what others wrote in them stays. It
// does not use package conflist, which makes the configuration of a Windows node.

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
)

// object is a JSON object that keeps the order of its keys and the text of its
// values. So what others wrote is written back unchanged: large numbers, the order
// of keys, unknown fields.
type object []member

// member is a key with its value.
type member struct {
	key   string
	value json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
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
		m := member{key: key.(string)} // the decoder returns an error for other keys
		if err := d.Decode(&m.value); err != nil {
			return err
		}
		if i := o.index(m.key); i >= 0 { // the last of several equal keys counts, as in encoding/json and so in libcni
			*o = slices.Delete(*o, i, i+1)
		}
		*o = append(*o, m)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
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

// index returns the position of a key, -1 if it is missing. Other capitals make another
// key, as in libcni, which looks for the keys of a list in a map.
func (o object) index(key string) int {
	return slices.IndexFunc(o, func(m member) bool { return m.key == key })
}

// get returns the value of a key, nil if the key is missing.
func (o object) get(key string) json.RawMessage {
	if i := o.index(key); i >= 0 {
		return o[i].value
	}
	return nil
}

// text returns the value of a key if it is a string, else "".
func (o object) text(key string) (s string) {
	if json.Unmarshal(o.get(key), &s) != nil {
		return ""
	}
	return s
}

// conf is a network configuration: a list of plugins (.conflist), or a single
// plugin (.conf). The object has all of its text, and is all that encode writes.
// plugins is a copy of the key "plugins" in it, decoded by parseConf. Who changes
// plugins (merge) must set the key, too.
type conf struct {
	object
	plugins []object // nil: a single plugin
}

// mainPlugin is the type of the plugin that a flannel configuration must have.
const mainPlugin = "flannel"

// parseConf parses a configuration. It accepts what a container runtime accepts.
func parseConf(text []byte) (c conf, err error) {
	if err := json.Unmarshal(text, &c.object); err != nil {
		return conf{}, err
	}
	if c.text("name") == "" {
		return conf{}, errors.New("it has no name")
	}
	list := c.get("plugins")
	if list == nil && c.text("type") != "" {
		return c, nil
	}
	if err := json.Unmarshal(list, &c.plugins); list == nil || err != nil { // nil: neither a list nor a type
		return conf{}, errors.New("plugins is not a list of objects")
	}
	if len(c.plugins) == 0 || slices.Contains(c.types(), "") {
		return conf{}, errors.New("a plugin has no type, or there is no plugin")
	}
	return c, nil
}

// types returns the types of the plugins, in their order.
func (c conf) types() (types []string) {
	if c.plugins == nil {
		return []string{c.text("type")}
	}
	for _, p := range c.plugins {
		types = append(types, p.text("type"))
	}
	return types
}

// requiredType returns the type of the plugin that the installed file must have if this is
// its source: flannel or, if the source does not have that, its first plugin. A file
// without such a plugin is repaired (validate).
func (c conf) requiredType() string {
	if types := c.types(); !slices.Contains(types, mainPlugin) {
		return types[0]
	}
	return mainPlugin
}

// encode returns the configuration as indented JSON.
func (c conf) encode() ([]byte, error) {
	text, err := json.MarshalIndent(c.object, "", "  ")
	return append(text, '\n'), err
}

// equal reports whether two JSON texts have the same value, whatever their spaces
// and the order of keys. A text that is not JSON equals none. Callers have parsed
// the texts before, so that nothing follows the value.
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
