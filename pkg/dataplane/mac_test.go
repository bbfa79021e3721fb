package dataplane

import "testing"

func TestParseMAC(t *testing.T) {
	for text, want := range map[string]string{
		"c6:d2:32:6f:8f:44": "c6:d2:32:6f:8f:44", "C6-D2-32-6F-8F-44": "c6:d2:32:6f:8f:44", "c6d2.326f.8f44": "c6:d2:32:6f:8f:44",
		"": "", "c6:d2:32:6f:8f": "", "02:00:5e:10:00:00:00:01": "", "garbage": "",
	} {
		a, err := ParseMAC(text)
		if (err != nil) != (want == "") || err == nil && a.String() != want {
			t.Errorf("%q gives %s, %v; want %q", text, a, err, want)
		}
		var back MAC
		if written, _ := a.MarshalText(); back.UnmarshalText(written) != nil || back != a {
			t.Errorf("%s reads back as %s", a, back)
		}
	}
}
