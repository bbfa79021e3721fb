// This file translates between a lease and its value in etcd, flannel's JSON; key.go
// has an example.

package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"unique"

	"flannel/subnet"
)

// maxValue bounds the value of a lease, in bytes. A normal one has a few hundred; a
// daemon keeps those of all peers in memory.
const maxValue = 4 << 10

// leaseValue is the value of a lease: how to reach its node.
type leaseValue struct {
	PublicIP, PublicIPv6 netip.Addr      // zero: none
	BackendType          string          // empty: none is published, see subnet.Lease.Backend
	Data, V6Data         json.RawMessage // compact JSON; nil: none
}

// valueJSON is the JSON form of a leaseValue, which is flannel's. Its fields are written
// in this order. A node without IPv6 has no PublicIPv6, as null.
type valueJSON struct {
	PublicIP      string
	PublicIPv6    *string
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
}

// encodeValue returns v in JSON, byte for byte as flannel writes it. It fails if Data
// or V6Data is not JSON.
func encodeValue(v leaseValue) ([]byte, error) {
	s := valueJSON{PublicIP: "0.0.0.0", BackendType: v.BackendType, BackendData: v.Data, BackendV6Data: v.V6Data}
	if v.PublicIP.IsValid() {
		s.PublicIP = v.PublicIP.String()
	}
	if v.PublicIPv6.IsValid() {
		v6 := v.PublicIPv6.String()
		s.PublicIPv6 = &v6
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // keeps backend data as it is
	if err := enc.Encode(s); err != nil {
		return nil, fmt.Errorf("encode lease: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decodeValue parses the value of a lease. An error is one line and quotes at most
// the beginning of raw.
func decodeValue(raw []byte) (leaseValue, error) {
	if len(raw) > maxValue {
		return leaseValue{}, fmt.Errorf("the value has more than %d bytes", maxValue)
	}
	// json.Unmarshal would accept null as an empty object.
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return leaseValue{}, fmt.Errorf("the value %s is not a JSON object", clipText(string(raw)))
	}
	var s valueJSON
	if err := json.Unmarshal(raw, &s); err != nil {
		return leaseValue{}, jsonError(raw, err)
	}
	// unique: all leases share the memory of equal types.
	v := leaseValue{BackendType: unique.Make(s.BackendType).Value(), Data: compact(s.BackendData), V6Data: compact(s.BackendV6Data)}
	var err error
	// A node without IPv4 writes 0.0.0.0, because flannel's format requires an address.
	if s.PublicIP != "" && s.PublicIP != "0.0.0.0" {
		if v.PublicIP, err = netip.ParseAddr(s.PublicIP); err != nil || !v.PublicIP.Is4() {
			return leaseValue{}, fmt.Errorf("PublicIP: %s is not an IPv4 address", clipText(s.PublicIP))
		}
	}
	if s.PublicIPv6 != nil && *s.PublicIPv6 != "" && *s.PublicIPv6 != "::" {
		v.PublicIPv6, err = netip.ParseAddr(*s.PublicIPv6)
		if err != nil || !v.PublicIPv6.Is6() || validateAddr(v.PublicIPv6) != nil {
			return leaseValue{}, fmt.Errorf("PublicIPv6: %s is not an IPv6 address", clipText(*s.PublicIPv6))
		}
		if v.PublicIPv6.IsUnspecified() { // "::" in another notation
			v.PublicIPv6 = netip.Addr{}
		}
	}
	return v, nil
}

// jsonError returns an error of bounded length for one of encoding/json, which may
// quote a value of any length.
func jsonError(raw []byte, err error) error {
	var typeErr *json.UnmarshalTypeError
	if errors.As(err, &typeErr) {
		return fmt.Errorf("%s is not a %v", clipText(typeErr.Field), typeErr.Type)
	}
	return fmt.Errorf("the value %s is not JSON", clipText(string(raw)))
}

// compact removes spaces. It returns nil for null, which means no data, and for data that
// is not JSON. The result may share the memory of data.
func compact(data json.RawMessage) json.RawMessage {
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		return nil
	}
	if !bytes.ContainsAny(data, " \t\r\n") && json.Valid(data) {
		return data // avoids a copy in the usual case
	}
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return nil
	}
	return b.Bytes()
}

// Equal reports whether two values are equal, whatever the spaces in their backend
// data.
func (v leaseValue) Equal(o leaseValue) bool {
	return v.PublicIP == o.PublicIP && v.PublicIPv6 == o.PublicIPv6 && v.BackendType == o.BackendType &&
		bytes.Equal(compact(v.Data), compact(o.Data)) && bytes.Equal(compact(v.V6Data), compact(o.V6Data))
}

// valueOf returns the value of a lease; leaseWith and parseLease are the inverse.
func valueOf(l subnet.Lease) leaseValue {
	v := leaseValue{BackendType: l.Backend, Data: compact(l.V4.Data), V6Data: compact(l.V6.Data)}
	if l.V4.On() {
		v.PublicIP = l.V4.PublicIP
	}
	if l.V6.On() {
		v.PublicIPv6 = l.V6.PublicIP
	}
	return v
}

// parseLease parses an entry of the store. name is the key without the prefix; the caller
// sets Name to the whole key, and Since. The error is one line, and quotes at most the
// beginning of what others wrote.
func parseLease(name string, raw []byte) (*subnet.Lease, error) {
	v4, v6, err := parseKey(name)
	if err != nil {
		return nil, err
	}
	v, err := decodeValue(raw)
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
	for _, e := range l.Endpoints() { // a lease without an address in one of its families is rejected as a whole
		if !e.PublicIP.IsValid() {
			return nil, fmt.Errorf("no public address for %v", e.Subnet)
		}
	}
	return l, nil
}
