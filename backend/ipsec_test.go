package backend

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

var (
	ipsecSecret = strings.Repeat("0123456789abcdef", 6)
	ipsecEth0   = underlay.Link{Name: "eth0", Index: 2, MTU: 1500, V4: netip.MustParseAddr("192.168.100.1"), PublicV4: netip.MustParseAddr("203.0.113.1")}
	ipsecNode   = Node{Underlay: ipsecEth0, V4: true, V6: true}
)

func ipsecLease(subnet4, ip string) subnet.Lease {
	return subnet.Lease{Backend: "ipsec", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix(subnet4), PublicIP: netip.MustParseAddr(ip)},
		V6: subnet.Endpoint{Subnet: netip.MustParsePrefix("fd05::/64"), PublicIP: netip.MustParseAddr("fd00::1")}}
}

// newBackend returns the backend of a configuration without its braces.
func newIPsec(t *testing.T, config string) Backend {
	t.Helper()
	o := conf.Parse([]byte(`{"PSK":"` + ipsecSecret + `"` + config + `}`))
	maker := parseIPsec(o, "linux")
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	b, _, err := maker(ipsecNode)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The default configuration, and one with all keys.
func TestIPsec(t *testing.T) {
	for _, c := range []struct {
		config, proposal string
		udp              bool
		mtu              int
	}{
		{``, "aes128gcm16-sha256-prfsha256-ecp256", false, 1423},
		{`,"ESPProposal":"","UDPEncap":false`, "aes128gcm16-sha256-prfsha256-ecp256", false, 1423},
		{`,"ESPProposal":"aes256-sha256-modp2048","UDPEncap":true`, "aes256-sha256-modp2048", true, 1415},
	} {
		b := newIPsec(t, c.config)
		devices := b.Devices(ipsecLease("10.5.1.0/24", "203.0.113.1"))
		want := dataplane.IPsec{Local: ipsecEth0.V4, ID: ipsecEth0.PublicV4, Subnet: netip.MustParsePrefix("10.5.1.0/24"),
			Secret: conf.NewSecret(ipsecSecret), Proposal: c.proposal, UDPEncap: c.udp}
		if len(devices) != 1 || devices[0].Name != "eth0" || devices[0].Kind != want || b.MTU() != c.mtu {
			t.Errorf("%s: MTU %d, devices %+v", c.config, b.MTU(), devices)
		}
		peer := ipsecLease("10.5.2.0/24", "192.168.100.2")
		paths, err := b.Paths(&peer)
		if err != nil || len(paths) != 1 || *paths[0] != (dataplane.Path{Dst: peer.V4.Subnet, Via: peer.V4.PublicIP, Device: "eth0", Encap: dataplane.ESP{}}) {
			t.Errorf("%s: paths %+v, %v", c.config, paths, err)
		}
		if l, err := b.Describe(ipsecLease("10.5.1.0/24", "203.0.113.1"), nil); err != nil || l.Backend != "ipsec" || l.V4.Data != nil {
			t.Errorf("%s: the lease is %+v, %v", c.config, l, err)
		}
	}
}

func TestIPsecProblems(t *testing.T) {
	for config, names := range map[string][]string{
		`{}`:                        {"PSK:", "96"},
		`{"PSK":"hunter2-hunter2"}`: {"PSK:", "96"},
		`{"PSK":"` + ipsecSecret + `","ESPProposal":"aes128 sha256"}`:      {"ESPProposal:"},
		`{"PSK":"` + ipsecSecret + `","ESPProposal":"aes128,aes256"}`:      {"ESPProposal:"},
		`{"PSK":"` + ipsecSecret + `","ESPProposal":"aes256gmc16-ecp384"}`: {"ESPProposal:", "aes256gmc16"},
		`{"PSK":"` + ipsecSecret + `","ESPProposal":"sha256-ecp384"}`:      {"ESPProposal:", "sha256-ecp384"},
		`{"PSK":"` + ipsecSecret + `","ESPProposal":"aes128-"}`:            {"ESPProposal:"},
		`{"PSK":"` + ipsecSecret + `","UDPEncap":"often"}`:                 {"UDPEncap:"},
		`{"PSK":"` + strings.Repeat("x", 70000) + `"}`:                     {"PSK:"},
		`{"PSK":"` + ipsecSecret[1:] + `","ESPProposal":"-","UDPEncap":1}`: {"PSK:", "ESPProposal:", "UDPEncap:"},
	} {
		o := conf.Parse([]byte(config))
		parseIPsec(o, "linux")
		err := o.Err()
		if err == nil || !logtest.Names(err.Error(), names...) {
			t.Errorf("%.200s: %v", config, err)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), ipsecSecret[1:])) {
			t.Errorf("%.200s: the error shows the secret: %v", config, err)
		}
	}
	o := conf.Parse([]byte(`{"PSK":"` + ipsecSecret + `"}`))
	parseIPsec(o, "windows")
	if err := o.Err(); err == nil || !logtest.Names(err.Error(), "Type:", "vxlan") {
		t.Errorf("on Windows: %v", err)
	}
	small := ipsecNode
	small.Underlay.MTU = 652
	o = conf.Parse([]byte(`{"PSK":"` + ipsecSecret + `"}`))
	if _, _, err := parseIPsec(o, "linux")(small); err == nil || !logtest.Names(err.Error(), "eth0", "653") {
		t.Errorf("with an MTU of 652: %v", err)
	}
}

// What strongSwan 5.9.8 accepts in load-conn; the last one needs strongSwan 6.
func TestESPProposals(t *testing.T) {
	for _, proposal := range []string{
		"aes", "aes128", "aes256-sha256", "aes128ctr", "aes256ccm16", "aes256ccm", "aes128gcm", "aes256gcm16-sha384-ecp384", "aes256gcm128", "aes192gmac",
		"camellia256-sha512", "camellia128ccm16", "camellia128ctr", "3des-md5", "blowfish256-sha1_160", "cast128-sha", "serpent128-aesxcbc", "twofish-aescmac",
		"null-sha256", "chacha20poly1305", "chacha20poly1305compat-x25519", "aes128-aes256-sha1-modp2048s256-noesn", "aes128gcm16-modpnone-esn-prfaescmac",
		"aes128gcm16-sha256_96", "aes128gcm16-sha2_256_96", "aes128gcm16-ecp512bp", "aes128gcm16-curve448", "aes128gcm16-ke1_mlkem768",
	} {
		if problem := checkESPProposal(proposal); problem != "" {
			t.Errorf("%s: %s", proposal, problem)
		}
	}
}

// Nodes that cannot authenticate each other have different names on the wire.
func TestIPsecWire(t *testing.T) {
	b := newIPsec(t, "").Wire()
	if other := newIPsec(t, `,"ESPProposal":"aes256-sha256"`).Wire(); other.Name == b.Name || !b.Paths || b.Echo || b.Untyped {
		t.Errorf("%+v, %+v", b, other)
	}
	o := conf.Parse([]byte(`{"PSK":"` + ipsecSecret + `x"}`))
	other, _, err := parseIPsec(o, "linux")(ipsecNode)
	if err != nil || other.Wire().Name == b.Name {
		t.Errorf("with another secret: %+v, %v", other.Wire(), err)
	}
}

// Nothing that is printed or encoded contains the secret.
func TestSecretStaysHidden(t *testing.T) {
	b := newIPsec(t, "")
	devices := b.Devices(ipsecLease("10.5.1.0/24", "203.0.113.1"))
	text, err := json.Marshal(devices)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprintf("%v %+v %#v", b, b, b), fmt.Sprintf("%v %+v %#v", devices, devices, devices), string(text), b.Wire().Name} {
		if strings.Contains(shown, ipsecSecret[:20]) || strings.Contains(shown, fmt.Sprintf("%x", ipsecSecret[:20])) {
			t.Errorf("the secret is shown: %s", shown)
		}
	}
}
