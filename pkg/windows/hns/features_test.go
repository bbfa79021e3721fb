package hns

import (
	"errors"
	"strings"
	"testing"
)

func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		v    Version
		want string // R RemoteSubnet and HostRoute, D DSR, P VxlanPort, 6 IPv6DualStack
	}{
		{Version{0, 0}, ""}, {Version{7, 2}, ""}, {Version{9, 1}, ""}, {Version{9, 2}, "R"}, {Version{9, 3}, "RD"}, {Version{9, 5}, "RD"},
		{Version{10, 0}, "R"}, {Version{10, 1}, "R"}, {Version{10, 2}, "RD"}, {Version{10, 3}, "RDP"}, {Version{11, 0}, "RDP"},
		{Version{11, 9}, "RDP"}, {Version{11, 10}, "RDP6"}, {Version{12, 0}, "RDP6"}, {Version{13, 3}, "RDP6"}, {Version{16, 0}, "RDP6"},
	} {
		f, got := c.v.Features(), ""
		if f.RemoteSubnet != f.HostRoute {
			t.Errorf("%s: %+v", c.v, f)
		}
		for _, has := range []struct {
			yes    bool
			letter string
		}{{f.RemoteSubnet, "R"}, {f.DSR, "D"}, {f.VxlanPort, "P"}, {f.IPv6DualStack, "6"}} {
			if has.yes {
				got += has.letter
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.v, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		code Code
		is   error
		text string
	}{
		{0x803b0001, ErrNotFound, ErrNotFound.Error() + " (0x803b0001): Das Netzwerk wurde nicht gefunden."},
		{0x80070490, ErrNotFound, ""}, {0x803b0008, ErrNotFound, ""},
		{0x803b0010, ErrExists, ""}, {0x803b0012, ErrExists, ""}, {0x803b0014, ErrExists, ""},
		{0x800706ba, ErrUnavailable, ErrUnavailable.Error() + " (0x800706ba): "},
		{0x800706be, ErrUnavailable, ""}, {0x80070422, ErrUnavailable, ""}, {0x80070424, ErrUnavailable, ""}, {0x803b0020, ErrUnavailable, ""},
		{0x803b0015, ErrUnsupported, ""}, {0x80004001, ErrUnsupported, ""},
		{0x803b000d, nil, "0x803b000d"},
	} {
		err := error(&Error{"HcnOpenNetwork", c.code, "Das Netzwerk wurde nicht gefunden."})
		for _, sentinel := range []error{ErrNotFound, ErrExists, ErrUnavailable, ErrUnsupported, ErrTimeout} {
			if errors.Is(err, sentinel) != (sentinel == c.is) {
				t.Errorf("%v: is %v: %t", err, sentinel, sentinel != c.is)
			}
		}
		if !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v, want %s", err, c.text)
		}
	}
	if got := (&Error{Call: "X", Code: 0x803b000d}).Error(); !strings.HasPrefix(got, "X: ") || !strings.HasSuffix(got, "0x803b000d") {
		t.Error(got)
	}
}
