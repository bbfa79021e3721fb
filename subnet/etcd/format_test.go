package etcd

import (
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
)

func TestParseKey(t *testing.T) {
	for _, c := range []struct {
		in, v4, v6 string // both prefixes are empty for an invalid key
		err        string // what the error names
	}{
		{"10.5.34.0-24", "10.5.34.0/24", "", ""},
		{"10.5.34.0-24&2001:cafe:42:1::-64", "10.5.34.0/24", "2001:cafe:42:1::/64", ""},
		{"0.0.0.0-0&fd05:0:0:8::-64", "", "fd05:0:0:8::/64", ""},
		{"128.0.0.0-1", "128.0.0.0/1", "", ""},
		{"10.5.34.7-32", "10.5.34.7/32", "", ""},
		{"0.0.0.0-0", "", "", `"0" 32`},
		{"10.5.34.0-33", "", "", `"33" 32`},
		{"10.5.34.0--1", "", "", `"-1"`},
		{"10.5.34.0-+24", "", "", `"+24"`},
		{"10.5.34.1-24", "", "", "10.5.34.1/24"},
		{"10.5.034.0-24", "", "", `"10.5.034.0"`},
		{"foo", "", "", `"foo" ADDRESS-LENGTH`},
		{"", "", "", "ADDRESS-LENGTH"},
		{"10.5.34.0-24&", "", "", "ADDRESS-LENGTH"},
		{"10.5.34.0-24&10.6.0.0-24", "", "", "10.6.0.0/24 IPv6"},
		{"fd05::-64", "", "", "fd05::/64 IPv4"},
		{"0.0.0.0-0&fd05::1-64", "", "", "fd05::1/64"},
		{"0.0.0.0-0&fe80::%eth0-64", "", "", "zone"},
		{"0.0.0.0-0&::ffff:10.5.0.0-120", "", "", "::ffff:10.5.0.0"},
		{strings.Repeat("x", 1000), "", "", "…"},
	} {
		v4, v6, err := parseKey(c.in)
		if c.err != "" {
			if err == nil || !logtest.Names(err.Error(), strings.Fields(c.err)...) || len(err.Error()) > 200 {
				t.Errorf("%s: %v, want an error with %q", clipText(c.in), err, c.err)
			}
			continue
		}
		if err != nil || prefixText(v4) != c.v4 || prefixText(v6) != c.v6 {
			t.Errorf("%s: %v %v %v", c.in, v4, v6, err)
		}
		if back := formatKey(v4, v6); back != c.in {
			t.Errorf("%s is formatted as %s", c.in, back)
		}
	}
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func TestEncodeValue(t *testing.T) {
	for _, c := range []struct {
		v    leaseValue
		want string
	}{
		{leaseValue{PublicIP: addr("192.168.64.3"), BackendType: "vxlan", Data: []byte(`{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`)},
			`{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`},
		{leaseValue{PublicIP: addr("192.168.64.3")}, `{"PublicIP":"192.168.64.3","PublicIPv6":null}`},
		{leaseValue{PublicIPv6: addr("fc00::3"), BackendType: "vxlan", V6Data: []byte(`{"VNI":1}`)},
			`{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::3","BackendType":"vxlan","BackendV6Data":{"VNI":1}}`},
		{leaseValue{PublicIP: addr("192.168.64.3"), PublicIPv6: addr("fc00::3"), BackendType: "extension", Data: []byte(`"a <b> & c"`)},
			`{"PublicIP":"192.168.64.3","PublicIPv6":"fc00::3","BackendType":"extension","BackendData":"a <b> & c"}`},
	} {
		got, err := encodeValue(c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("wrote %s (%v)\nwant  %s", got, err, c.want)
		}
		back, err := decodeValue(got)
		if err != nil || !back.Equal(c.v) {
			t.Errorf("%s: read %+v, %v", got, back, err)
		}
	}
	if _, err := encodeValue(leaseValue{Data: []byte(`{`)}); err == nil {
		t.Error("encoded backend data that is not JSON")
	}
}

func TestDecodeValue(t *testing.T) {
	for _, c := range []struct{ in, err string }{
		{`{"PublicIP":"192.168.64.3","BackendType":"host-gw","BackendData":null}`, ""},
		{`{"PublicIP":"192.168.64.3","PublicIPv6":null,"Whatever":[1]}`, ""},
		{`{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::3"}`, ""},
		{``, `""`},
		{`garbage`, `"garbage"`},
		{`null`, `"null"`},
		{`[]`, `"[]"`},
		{`{"PublicIP":"192.168.64.3"`, "192.168.64.3"},
		{`{"PublicIP":"192.168.64.3"} x`, "192.168.64.3"},
		{`{"PublicIP":` + strings.Repeat("7", 3000) + `}`, "PublicIP"},
		{`{"PublicIP":"none"}`, `PublicIP "none"`},
		{`{"PublicIP":"::ffff:1.2.3.4"}`, `PublicIP "::ffff:1.2.3.4"`},
		{`{"PublicIP":"fc00::1"}`, `PublicIP "fc00::1"`},
		{`{"PublicIP":"1.2.3.4","PublicIPv6":"1.2.3.4"}`, `PublicIPv6 "1.2.3.4"`},
		{`{"PublicIP":"1.2.3.4","PublicIPv6":"::ffff:1.2.3.4"}`, `PublicIPv6 "::ffff:1.2.3.4"`},
		{`{"PublicIP":"1.2.3.4","PublicIPv6":"fe80::1%eth0"}`, `PublicIPv6 "fe80::1%eth0"`},
		{`{"PublicIP":"` + strings.Repeat("1", 70_000) + `"}`, "4096"},
	} {
		v, err := decodeValue([]byte(c.in))
		if c.err == "" && err != nil || c.err != "" && (err == nil || !logtest.Names(err.Error(), strings.Fields(c.err)...)) {
			t.Errorf("%s: %+v, %v, want an error with %q", clipText(c.in), v, err, c.err)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("%s: the error has %d bytes", clipText(c.in), len(err.Error()))
		}
		if err == nil && v.Data != nil {
			t.Errorf("%s: data %s, want none", c.in, v.Data)
		}
	}
}

func TestParseLease(t *testing.T) {
	for _, c := range []struct{ name, value, err string }{
		{"10.5.34.0-24", `{"PublicIP":"1.2.3.4"}`, ""},
		{"10.5.34.0-24&fd05:0:0:8::-64", `{"PublicIP":"1.2.3.4","PublicIPv6":"fc00::1"}`, ""},
		{"10.5.34.0-24&fd05:0:0:8::-64", `{"PublicIP":"1.2.3.4","PublicIPv6":null}`, "fd05:0:0:8::/64"},
		{"10.5.34.0-24", `{"PublicIP":"0.0.0.0"}`, "10.5.34.0/24"},
		{"0.0.0.0-0&fd05:0:0:8::-64", `{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::1"}`, ""},
	} {
		l, err := parseLease(c.name, []byte(c.value))
		if c.err == "" && (err != nil || l.Name != c.name) || c.err != "" && (err == nil || !logtest.Names(err.Error(), strings.Fields(c.err)...)) {
			t.Errorf("%s %s: %+v, %v", c.name, c.value, l, err)
		}
	}
}

// Leases share the string of their backend type.
func TestSharedBackend(t *testing.T) {
	var data []*byte
	for range 2 {
		l, err := parseLease("10.5.34.0-24", []byte(`{"PublicIP":"1.2.3.4","BackendType":"vxlan"}`))
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, unsafe.StringData(l.Backend))
	}
	if data[0] != data[1] {
		t.Error("two leases have a string each")
	}
}

func FuzzKey(f *testing.F) {
	for _, s := range []string{"10.5.34.0-24", "10.5.34.0-24&2001:cafe:42:1::-64", "0.0.0.0-0&fd05:0:0:8::-64", "0.0.0.0-0",
		"10.5.34.0-33", "foo", "&", "-", "10.5.34.0-24&", "::ffff:1.2.3.0-24", "0.0.0.0-0&fe80::%a-64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v4, v6, err := parseKey(s)
		if err != nil {
			if len(err.Error()) > 600 {
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if !v4.IsValid() && !v6.IsValid() || v4.IsValid() && v4 != v4.Masked() || v6.IsValid() && v6 != v6.Masked() {
			t.Fatalf("%q gave %v and %v", s, v4, v6)
		}
		again4, again6, err := parseKey(formatKey(v4, v6))
		if err != nil || again4 != v4 || again6 != v6 {
			t.Fatalf("%q: %v %v became %v %v (%v)", s, v4, v6, again4, again6, err)
		}
	})
}

func FuzzValue(f *testing.F) {
	for _, s := range []string{`{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`,
		`{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::3","BackendV6Data": [ 1 ]}`, `garbage`, `{}`, `{"publicip":"1.2.3.4","BackendData":null}`,
		`{"PublicIP":"1.2.3.4","BackendData":"<\u2028>"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := decodeValue(raw)
		if err != nil {
			if len(err.Error()) > 600 {
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		out, err := encodeValue(v)
		if err != nil {
			t.Fatalf("%q was read as %+v and cannot be written: %v", raw, v, err)
		}
		if len(out) > maxValue {
			return // what was read had invalid UTF-8, which grows when written
		}
		again, err := decodeValue(out)
		if err != nil || !again.Equal(v) {
			t.Fatalf("%q: %s", raw, cmp.Diff(v.BackendType, again.BackendType))
		}
	})
}
