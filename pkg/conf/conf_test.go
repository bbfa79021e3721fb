package conf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
)

func TestValues(t *testing.T) {
	o := Parse([]byte("\ufeff" + `{"on": true, "OFF": false, "VNI": 17, "neg": -5, "Name": "cbr0", "list": ["a","b"], "net": "10.5.3.7/16",
		"Min": "10.5.1.0", "gone": null, "Backend": {"type": "vxlan", "deep": {"x": 1}}, "empty": []}`))
	b := o.Object("backend")
	got := []any{
		o.Bool("On", false), o.Bool("off", true), o.Bool("absent", true), o.Bool("gone", true),
		o.Int("vni", 1, 0, 100), o.Int("neg", 1, -5, 0), o.Int("absent", 7, 0, 1), o.Int("Gone", 8, 0, 1),
		o.String("name", ""), o.String("absent", "def"), o.Strings("List"), o.Strings("absent"), o.Strings("empty"),
		o.Prefix("Net"), o.Prefix("absent"), o.Addr("min"), o.Addr("absent"),
		b.String("Type", ""), b.Object("Deep").Int("X", 0, 0, 9), b.Object("absent").Int("X", 3, 0, 9),
		o.Has("NAME"), o.Has("gone"), o.Has("absent"),
	}
	want := []any{
		true, false, true, true,
		17, -5, 7, 8,
		"cbr0", "def", []string{"a", "b"}, []string(nil), []string{},
		netip.MustParsePrefix("10.5.3.7/16"), netip.Prefix{}, netip.MustParseAddr("10.5.1.0"), netip.Addr{},
		"vxlan", 1, 3,
		true, false, false,
	}
	for i := range want {
		if d := cmp.Diff(want[i], got[i], cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Errorf("value %d: %s", i, d)
		}
	}
	if err := o.Err(); err != nil {
		t.Errorf("problems: %v", err)
	}
	if w := o.Warnings(); len(w) != 0 {
		t.Errorf("warnings: %q", w)
	}
}

// TestProblems reads values that are wrong in different ways. Err must return
// all problems in the order of reading.
func TestProblems(t *testing.T) {
	o := Parse([]byte(`{
	"Backend": {"VNI": 17000000, "Port": -1, "MTU": 1450.5, "Huge": 123456789012345678901234567890, "Low": -123456789012345678901234567890,
		"Exp": 1e3, "Quoted": "8472", "Words": "many", "Flag": "true", "Flag2": 1, "Name": 5, "DNS": ["10.0.0.1", 7, null], "DNS2": "10.0.0.1",
		"PSK": 424242, "psk2": "hunter2", "Inner": "vxlan"},
	"Network": "10.5.0.0", "Network2": "ten/8", "Network3": 10, "Min": "10.5.1.0/24", "Min2": "fe80::1%eth0", "Min3": "x\ny",
	"Long": "` + strings.Repeat("x", 200) + `", "SubnetLen": [], "Bool": {}}`))
	b := o.Object("Backend")
	b.Int("VNI", 1, 1, 16777215)
	b.Int("VNI", 1, 1, 16777215)
	b.Int("Port", 1, 1, 65535)
	b.Int("MTU", 1, 1, 65535)
	b.Int("Huge", 1, 1, 65535)
	b.Int("Low", 1, 1, 65535)
	b.Int("Exp", 1, 1, 65535)
	b.Int("Quoted", 1, 1, 65535)
	b.Int("Words", 1, 1, 65535)
	b.Bool("Flag", false)
	b.Bool("Flag2", false)
	b.String("Name", "")
	if got := b.Strings("DNS"); !slices.Equal(got, []string{"10.0.0.1"}) {
		t.Errorf("DNS = %q", got)
	}
	b.Strings("DNS2")
	b.String("PSK", "")
	b.Int("psk2", 0, 0, 1)
	b.Object("Inner").Problem("Type", "missing; use one of %s", "a, b")
	b.Object("Absent").Object("More").Problem("", "missing")
	o.Prefix("Network")
	o.Prefix("Network2")
	o.Prefix("Network3")
	o.Addr("Min")
	o.Addr("Min2")
	o.Addr("Min3")
	o.Prefix("Long")
	o.Int("SubnetLen", 24, 1, 30)
	o.Bool("Bool", false)
	o.Problem("A\nB", "two\r\nlines")
	const want = `Backend.VNI: 17000000 16777215 1
Backend.Port: -1 1 65535
Backend.MTU: 1450.5 1 65535
Backend.Huge: 123456789012345678901234567890 65535 1
Backend.Low: -123456789012345678901234567890 1 65535
Backend.Exp: 1e3 1 65535
Backend.Quoted: "8472"
Backend.Words: "many" 1 65535
Backend.Flag: "true"
Backend.Flag2: 1
Backend.Name: 5
Backend.DNS[1]: 7
Backend.DNS[2]:
Backend.DNS2: "10.0.0.1"
Backend.PSK:
Backend.psk2: 0 1
Backend.Inner: "vxlan"
Backend.Inner.Type:
Backend.Absent.More:
Network: "10.5.0.0" 10.5.0.0/16
Network2: "ten/8" 10.5.0.0/16 fd05::/56
Network3: 10
Min: "10.5.1.0/24"
Min2: "fe80::1%eth0" 10.5.1.0 fd05:0:0:1
Min3: "x\ny" 10.5.1.0 fd05:0:0:1
Long: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…" 10.5.0.0/16 fd05::/56
SubnetLen: 1 30
Bool:
"A\nB":`
	err := b.Err()
	for _, secret := range []string{"424242", "hunter2"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error contains a secret: %v", err)
		}
	}
	if !logtest.Lines(err.Error(), want) {
		t.Errorf("%v\nwant lines with\n%s", err, want)
	}
}

func TestSyntax(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	for _, c := range []struct{ raw, want string }{
		{"", ""},
		{" \n\t", ""},
		{"[]", ""},
		{"null", ""},
		{`"x"`, ""},
		{"5", ""},
		{"true", ""},
		{"\xff\xfe{\x00}\x00", "UTF-16 UTF-8"},
		{"{\n  \"Network\": \"10.5.0.0/16\",\n}", "3 1 '}'"},
		{"{\"a\": [1,2,]}", "1 12 ']'"},
		{"{\"ä\": \"ö\" x}", "1 11 key:value"},
		{"{ // why\n}", "1 3 '/' JSON"},
		{"{} {}", "1 4 '{'"},
		{"{}x", "1 3"},
		{"{\"a\": 1", "1 7 JSON"},
		{"{\"a\": 01}", "1 8 '1' key:value"},
		{deep, "16"},
		{strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), "1 50001 '{'"},
		{`{"a":"` + strings.Repeat("x", 1<<20) + `"}`, "1048584 1048576"},
	} {
		o := Parse([]byte(c.raw))
		// After a syntax error, other problems must not be reported.
		o.Problem("Network", "missing")
		o.Object("Backend").Problem("Type", "missing")
		name := c.raw[:min(20, len(c.raw))]
		if err := o.Err(); err == nil || !logtest.Lines(err.Error(), c.want) {
			t.Errorf("%q: %v\nwant %s", name, err, c.want)
		}
		if w := o.Warnings(); len(w) != 0 {
			t.Errorf("%q: warnings %q", name, w)
		}
	}
}

func TestWarnings(t *testing.T) {
	o := Parse([]byte(`{"Netwrok": "x", "network": "10.0.0.0/8", "Network": "10.5.0.0/16", "colour": 1, "SubnetLn": 3, "Name": "cbr0", "skip\n": {"a": 1, "a": 2},
		"Backend": {"Prot": 1, "Port": 2, "prot": 3, "MacPrefix": "0E-2A", "Backend": 7, "PKS": "hunter2"}, "` + strings.Repeat("k", 100) + `": 1}`))
	if p := o.Prefix("Network"); p != netip.MustParsePrefix("10.5.0.0/16") {
		t.Errorf("got %v, want the last of two values", p)
	}
	o.Int("SubnetLen", 0, 0, 99)
	o.Ignore("Name", "DNSServerList")
	b := o.Object("Backend")
	o.Object("Backend")
	b.Int("Port", 0, 0, 99)
	b.String("PSK", "")
	b.Ignore("macprefix")
	b.Warn("Port", "%d is\nodd", 3)
	want := []string{
		"Netwrok: Network",
		"Network: 2",
		"colour:",
		"SubnetLn: SubnetLen",
		`"skip\n":`,
		strings.Repeat("k", 59) + "…:",
		"Backend.prot: Port",
		"Backend.Backend:",
		"Backend.PKS: PSK",
		"Backend.Port: 3",
	}
	if got := o.Warnings(); !logtest.Lines(strings.Join(got, "\n"), strings.Join(want, "\n")) {
		t.Errorf("%q\nwant lines with\n%q", got, want)
	}
	if o.Err() != nil {
		t.Error(o.Err())
	}
}

func TestMaxReports(t *testing.T) {
	var raw strings.Builder
	raw.WriteString("{")
	for i := range 5000 {
		fmt.Fprintf(&raw, `"key%d": "x", `, i)
	}
	raw.WriteString(`"last": 1}`)
	o := Parse([]byte(raw.String()))
	if w := o.Warnings(); len(w) != maxReports+1 || !logtest.Names(w[maxReports], "4901") {
		t.Errorf("%d warnings, last %q", len(w), w[len(w)-1])
	}
	for i := range 5000 {
		o.Int(fmt.Sprint("key", i), 0, 0, 1)
	}
	lines := strings.Split(o.Err().Error(), "\n")
	if len(lines) != maxReports+1 || !logtest.Names(lines[maxReports], "4900") {
		t.Errorf("%d problems, last %q", len(lines), lines[len(lines)-1])
	}
}

func TestNearest(t *testing.T) {
	known := []string{"Network", "SubnetLen", "SubnetMin", "SubnetMax", "Backend", "VNI", "EnableIPv4", "IPv6Network", "V"}
	for in, want := range map[string]string{
		"netwrok": "Network", "Subnetlne": "SubnetLen", "Backends": "Backend", "VN": "VNI", "IPv6Netwrk": "IPv6Network",
		"EnableIPV": "EnableIPv4", "": "", "x": "", "Whatever": "", "Foo": "", "SubnetMix": "SubnetMin",
	} {
		if got := nearest(in, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzParse reads an arbitrary configuration. Problems and warnings must be
// few, short and printable.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "{}", "[", `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":1,"PSK":"secret-value"}}`, `{"a":1,"A":2,"a":null}`,
		`{"VNI":"7","Network":"::/0","list":[1,"a",{}],"on":"true"}`, "{\"a\\nb\":{\"\xff\":1e999}}", `{"VNI":-0,"psk":{"x":["secret-value"]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o := Parse(raw)
		for _, object := range []*Object{o, o.Object("Backend"), o.Object("Backend").Object("Inner")} {
			object.Bool("on", false)
			if n := object.Int("VNI", 1, 1, 9); n < 1 || n > 9 {
				t.Errorf("VNI = %d", n)
			}
			object.String("PSK", "")
			object.Strings("list")
			object.Prefix("Network")
			object.Addr("SubnetMin")
			object.Has("other")
			object.Problem("Type", "missing")
		}
		lines := o.Warnings()
		if err := o.Err(); err == nil {
			t.Error("no problems")
		} else {
			lines = append(lines, strings.Split(err.Error(), "\n")...)
		}
		if len(lines) > 2*maxReports+2 {
			t.Errorf("%d lines", len(lines))
		}
		for _, l := range lines {
			if len(l) > 2000 || !utf8.ValidString(l) || strings.ContainsAny(l, "\r\n") {
				t.Errorf("a line is too long or not printable: %q", l)
			}
		}
	})
}
