package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"flannel/subnet"
)

// MaxValue bounds what is read of a foreign value, in bytes: a real one has a few hundred, and a daemon keeps all.
const MaxValue = 4 << 10

// Value is what a lease's key holds: how to reach its node.
type Value struct {
	PublicIP, PublicIPv6 netip.Addr      // the zero Addr: none
	BackendType          string          // empty while the subnet is claimed only
	Data, V6Data         json.RawMessage // compact JSON, nil where there is none
}

// stored is the JSON form, its fields in the order in which they are written.
type stored struct {
	PublicIP      string
	PublicIPv6    *string
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
}

// EncodeValue writes v as the other nodes read it, to the byte. It fails when Data or V6Data is not JSON.
func EncodeValue(v Value) ([]byte, error) {
	s := stored{PublicIP: "0.0.0.0", BackendType: v.BackendType, BackendData: v.Data, BackendV6Data: v.V6Data}
	if v.PublicIP.IsValid() {
		s.PublicIP = v.PublicIP.String()
	}
	if v.PublicIPv6.IsValid() {
		six := v.PublicIPv6.String()
		s.PublicIPv6 = &six
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // backend data is nobody's web page: it goes out as it came in
	if err := enc.Encode(s); err != nil {
		return nil, fmt.Errorf("encode lease: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// DecodeValue reads a lease's value. Its errors are one sentence and quote a bounded part of raw.
func DecodeValue(raw []byte) (Value, error) {
	if len(raw) > MaxValue {
		return Value{}, fmt.Errorf("the value has more than %d bytes", MaxValue)
	}
	// JSON's null would be read as an empty object without complaint.
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return Value{}, fmt.Errorf("the value %s is not a JSON object", Clip(string(raw)))
	}
	var s stored
	if err := json.Unmarshal(raw, &s); err != nil {
		return Value{}, explain(raw, err)
	}
	v := Value{BackendType: s.BackendType, Data: compact(s.BackendData), V6Data: compact(s.BackendV6Data)}
	var err error
	// A node without IPv4 writes 0.0.0.0, because flannel cannot write nothing: it is no address of anybody.
	if s.PublicIP != "" && s.PublicIP != "0.0.0.0" {
		if v.PublicIP, err = netip.ParseAddr(s.PublicIP); err != nil || !v.PublicIP.Is4() {
			return Value{}, fmt.Errorf("PublicIP: %s is not an IPv4 address", Clip(s.PublicIP))
		}
	}
	if s.PublicIPv6 != nil && *s.PublicIPv6 != "" && *s.PublicIPv6 != "::" {
		v.PublicIPv6, err = netip.ParseAddr(*s.PublicIPv6)
		if err != nil || !v.PublicIPv6.Is6() || plain(v.PublicIPv6) != nil {
			return Value{}, fmt.Errorf("PublicIPv6: %s is not an IPv6 address", Clip(*s.PublicIPv6))
		}
		if v.PublicIPv6.IsUnspecified() {
			v.PublicIPv6 = netip.Addr{}
		}
	}
	return v, nil
}

// explain words a JSON error without its quotation of the value, which may be of any length.
func explain(raw []byte, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s: is not a %v", Clip(wrong.Field), wrong.Type)
	}
	return fmt.Errorf("the value %s is not JSON", Clip(string(raw)))
}

func compact(data json.RawMessage) json.RawMessage {
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		return nil
	}
	if !bytes.ContainsAny(data, " \t\r\n") && json.Valid(data) {
		return data // as nearly always: no copy
	}
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return nil
	}
	return b.Bytes()
}

// Same tells whether a and b say the same, however their backend data is spaced.
func (v Value) Same(o Value) bool {
	return v.PublicIP == o.PublicIP && v.PublicIPv6 == o.PublicIPv6 && v.BackendType == o.BackendType &&
		bytes.Equal(compact(v.Data), compact(o.Data)) && bytes.Equal(compact(v.V6Data), compact(o.V6Data))
}

// ValueOf is what is stored for l.
func ValueOf(l subnet.Lease) Value {
	v := Value{BackendType: l.Backend, Data: compact(l.V4.Data), V6Data: compact(l.V6.Data)}
	if l.V4.On() {
		v.PublicIP = l.V4.PublicIP
	}
	if l.V6.On() {
		v.PublicIPv6 = l.V6.PublicIP
	}
	return v
}

// ParseLease reads one entry of the store; name is the key without the prefix.
func ParseLease(name string, raw []byte) (*subnet.Lease, error) {
	v4, v6, err := ParseKey(name)
	if err != nil {
		return nil, err
	}
	v, err := DecodeValue(raw)
	if err != nil {
		return nil, err
	}
	l := &subnet.Lease{Name: name, Backend: v.BackendType}
	if v4.IsValid() {
		l.V4 = subnet.Endpoint{Subnet: v4, PublicIP: v.PublicIP, Data: v.Data}
	}
	if v6.IsValid() {
		l.V6 = subnet.Endpoint{Subnet: v6, PublicIP: v.PublicIPv6, Data: v.V6Data}
	}
	for _, e := range l.Endpoints() { // half a lease is none: its owner would see traffic in one family only
		if !e.PublicIP.IsValid() {
			return nil, fmt.Errorf("no public address for %v", e.Subnet)
		}
	}
	return l, nil
}
