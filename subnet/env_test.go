package subnet

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/file"
)

const dualText = `FLANNEL_NETWORK=10.5.0.0/16
FLANNEL_SUBNET=10.5.72.1/24
FLANNEL_IPV6_NETWORK=2001:cafe:42::/56
FLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

var dualEnv = Env{
	V4Network: pfx("10.5.0.0/16"), V4Subnet: pfx("10.5.72.0/24"),
	V6Network: pfx("2001:cafe:42::/56"), V6Subnet: pfx("2001:cafe:42:1::/64"),
	MTU: 1450, IPMasq: true,
}

func TestFormatEnv(t *testing.T) {
	v4, v6 := dualEnv, dualEnv
	v4.V6Network, v4.V6Subnet, v4.IPMasq = netip.Prefix{}, netip.Prefix{}, false
	v6.V4Network, v6.V4Subnet = netip.Prefix{}, netip.Prefix{}
	for _, c := range []struct {
		env  Env
		want string
	}{
		{dualEnv, dualText},
		{v4, "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"},
		{v6, "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"},
	} {
		if got := string(format(c.env)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("got\n%swant\n%s", got, c.want)
		}
		if back, err := parseEnv([]byte(c.want)); err != nil || !reflect.DeepEqual(back, c.env) {
			t.Errorf("read back: %+v, %v", back, err)
		}
	}
}

func TestParseEnv(t *testing.T) {
	only := Env{V4Subnet: pfx("10.5.72.0/24")}
	for _, c := range []struct {
		raw, wrong string // what the error names
		want       Env
	}{
		{raw: strings.ReplaceAll(dualText, "\n", "\r\n"), want: dualEnv},
		{raw: strings.TrimSpace(dualText), want: dualEnv},
		{raw: "# a comment = 1\n\nOTHER=x\nnonsense\n" + dualText + "FLANNEL_FUTURE=7", want: dualEnv},
		{raw: "FLANNEL_SUBNET=10.5.72.1/24", want: only},
		{raw: "  FLANNEL_SUBNET=\"10.5.72.1/24\"  ", want: only},
		{raw: "FLANNEL_SUBNET=10.5.72.1/24,10.6.0.1/24", want: only},
		{raw: "FLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_SUBNET=10.5.72.1/24\n", want: only},
		{raw: "FLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=-55\n", want: Env{V4Subnet: only.V4Subnet, MTU: -55}},
		{raw: "", wrong: "FLANNEL_SUBNET FLANNEL_IPV6_SUBNET"},
		{raw: "\x00\x7fELF\n", wrong: "FLANNEL_SUBNET FLANNEL_IPV6_SUBNET"},
		{raw: "FLANNEL_MTU=1450\n", wrong: "FLANNEL_SUBNET FLANNEL_IPV6_SUBNET"},
		{raw: "FLANNEL_SUBNET=\n", wrong: `FLANNEL_SUBNET="" IPv4`},
		{raw: "FLANNEL_SUBNET=10.5.72.1\n", wrong: `FLANNEL_SUBNET="10.5.72.1" IPv4`},
		{raw: "FLANNEL_SUBNET=fd05::1/64\n", wrong: `FLANNEL_SUBNET="fd05::1/64" IPv4`},
		{raw: "FLANNEL_IPV6_SUBNET=10.5.72.1/24\n", wrong: `FLANNEL_IPV6_SUBNET="10.5.72.1/24" IPv6`},
		{raw: "FLANNEL_IPV6_SUBNET=::ffff:10.5.72.1/120\n", wrong: `FLANNEL_IPV6_SUBNET="::ffff:10.5.72.1/120" IPv6`},
		{raw: "FLANNEL_NETWORK=" + strings.Repeat("x", 500) + "\n", wrong: `FLANNEL_NETWORK="` + strings.Repeat("x", 60) + `" IPv4`},
		{raw: "FLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=big\n", wrong: `FLANNEL_MTU="big"`},
		{raw: "FLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_IPMASQ=perhaps\n", wrong: `FLANNEL_IPMASQ="perhaps" true false`},
	} {
		got, err := parseEnv([]byte(c.raw))
		if c.wrong != "" {
			if err == nil || !logtest.Names(err.Error(), strings.Fields(c.wrong)...) || !reflect.DeepEqual(got, Env{}) {
				t.Errorf("%q: %+v, %v, want %s", c.raw, got, err, c.wrong)
			}
		} else if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v", c.raw, got, err)
		}
	}
}

func TestWriteEnv(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "flannel", "subnet.env")
	if e, err := ReadEnv(path); err != nil || !reflect.DeepEqual(e, Env{}) {
		t.Errorf("a missing file: %+v, %v", e, err)
	}
	write := func(e Env, want bool) os.FileInfo {
		t.Helper()
		if changed, err := WriteEnv(path, e); err != nil || changed != want {
			t.Errorf("changed %v, %v", changed, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ReadEnv(path); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("read back %+v, %v", got, err)
		}
		return info
	}
	public := os.FileMode(0o644)
	if runtime.GOOS == "windows" {
		public = 0o666 // that is: not read-only
	}
	first := write(dualEnv, true)
	if mode := first.Mode(); mode != public {
		t.Errorf("mode %v", mode)
	}
	if again := write(dualEnv, false); !os.SameFile(first, again) {
		t.Error("an equal file was written again")
	}
	other := dualEnv
	other.MTU = 1400
	if next := write(other, true); os.SameFile(first, next) {
		t.Error("the file was written in place: a reader may see a part of it")
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEnv(path); !errors.Is(err, ErrMalformed) || !logtest.Names(err.Error(), path) {
		t.Errorf("garbage: %v", err)
	}
	if mode := write(dualEnv, true).Mode(); mode != public {
		t.Errorf("mode %v", mode)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if _, err := WriteEnv(filepath.Join(path, "below", "a", "file"), dualEnv); err == nil {
		t.Error("wrote below a file")
	}
	if _, err := ReadEnv(filepath.Dir(path)); err == nil {
		t.Error("a directory was read")
	}
}

// FuzzParseEnv: what was read is written and read again as the same.
func FuzzParseEnv(f *testing.F) {
	for _, s := range []string{dualText, "FLANNEL_SUBNET=10.5.72.1/24,10.6.0.1/24", "FLANNEL_SUBNET='1.2.3.4/0'\r\n#", "\x00=\nFLANNEL_MTU=-1", "FLANNEL_IPMASQ=t"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := parseEnv(raw)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("a long error: %q", err)
			}
			return
		}
		if !e.V4Network.IsValid() || !e.V4Subnet.IsValid() {
			e.V4Network, e.V4Subnet = netip.Prefix{}, netip.Prefix{}
		}
		if !e.V6Network.IsValid() || !e.V6Subnet.IsValid() {
			e.V6Network, e.V6Subnet = netip.Prefix{}, netip.Prefix{}
		}
		text := format(e)
		if !e.V4Subnet.IsValid() && !e.V6Subnet.IsValid() {
			return
		}
		back, err := parseEnv(text)
		if err != nil || !reflect.DeepEqual(back, e) || !bytes.Equal(text, format(back)) {
			t.Errorf("%q became %q: %+v, %v", raw, text, back, err)
		}
	})
}

// A node remembers its last subnets: for a network to which the configuration returns, and because its pods' bridge may
// still have an address of one.
func TestFormerSubnet(t *testing.T) {
	a := Config{V4: Network{Prefix: pfx("10.5.0.0/16"), SubnetLen: 24}}
	b := Config{V4: Network{Prefix: pfx("10.9.0.0/16"), SubnetLen: 24}}
	both := Config{V4: a.V4, V6: Network{Prefix: pfx("fd05::/48"), SubnetLen: 64}}
	e := Env{V4Network: a.V4.Prefix, V4Subnet: pfx("10.5.72.0/24"), MTU: 1450}
	for _, step := range []struct {
		name             string
		cfg              Config
		four, six        string // remembered
		becomes4         string // the node's subnets after this step
		becomes6         string
		former4, former6 string // of the next file
	}{
		{"the same", a, "10.5.72.0/24", "", "10.5.72.0/24", "", "", ""},
		{"another network", b, "10.5.72.0/24", "", "10.9.3.0/24", "", "10.5.72.0/24", ""},
		{"a restart there", b, "10.9.3.0/24", "", "10.9.3.0/24", "", "10.5.72.0/24", ""},
		{"another subnet there", b, "10.9.3.0/24", "", "10.9.4.0/24", "", "10.9.3.0/24,10.5.72.0/24", ""},
		{"back", both, "10.5.72.0/24", "", "10.5.72.0/24", "fd05:0:0:7::/64", "10.9.4.0/24,10.9.3.0/24", ""},
		{"without IPv6", a, "10.5.72.0/24", "fd05:0:0:7::/64", "10.5.72.0/24", "", "10.9.4.0/24,10.9.3.0/24", "fd05:0:0:7::/64"},
		{"with IPv6", both, "10.5.72.0/24", "fd05:0:0:7::/64", "10.5.73.0/24", "fd05:0:0:8::/64", "10.5.72.0/24,10.9.4.0/24,10.9.3.0/24", "fd05:0:0:7::/64"},
		{"a bounded list", a, "10.5.73.0/24", "fd05:0:0:8::/64", "10.5.74.0/24", "", "10.5.73.0/24,10.5.72.0/24,10.9.4.0/24,10.9.3.0/24", "fd05:0:0:8::/64,fd05:0:0:7::/64"},
		{"the oldest is forgotten", a, "10.5.74.0/24", "", "10.5.75.0/24", "", "10.5.74.0/24,10.5.73.0/24,10.5.72.0/24,10.9.4.0/24", "fd05:0:0:8::/64,fd05:0:0:7::/64"},
	} {
		text := func(p netip.Prefix) string {
			if p.IsValid() {
				return p.String()
			}
			return ""
		}
		v4, v6 := e.Remembered(step.cfg)
		if text(v4) != step.four || text(v6) != step.six {
			t.Errorf("%s: remembered are %v and %v", step.name, v4, v6)
		}
		next := Env{V4Network: step.cfg.V4.Prefix, V4Subnet: pfx(step.becomes4), MTU: 1450}
		if step.becomes6 != "" {
			next.V6Network, next.V6Subnet = step.cfg.V6.Prefix, pfx(step.becomes6)
		}
		next.FormerV4, next.FormerV6 = e.Former(Lease{V4: Endpoint{Subnet: next.V4Subnet}, V6: Endpoint{Subnet: next.V6Subnet}})
		if joinPrefixes(next.FormerV4) != step.former4 || joinPrefixes(next.FormerV6) != step.former6 {
			t.Errorf("%s: former are %v and %v", step.name, next.FormerV4, next.FormerV6)
		}
		var err error
		if e, err = parseEnv(format(next)); err != nil || !reflect.DeepEqual(e, next) {
			t.Errorf("%s: %+v is read as %+v (%v)", step.name, next, e, err)
		}
	}
}

// A file whose owner is not judged, because Windows does not list the administrators, is not malformed: the node would give its
// subnet up. One of a stranger is.
func TestOwnerOfEnv(t *testing.T) {
	for _, unlisted := range []error{nil, errors.New("no answer")} {
		err := openError(&file.UntrustedError{Path: "subnet.env", Err: unlisted})
		if errors.Is(err, ErrMalformed) != (unlisted == nil) || !logtest.Names(err.Error(), "subnet.env") {
			t.Errorf("administrators: %v; got %v", unlisted, err)
		}
	}
}
