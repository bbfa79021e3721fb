// Package ipsec is the ipsec backend (Linux, IPv4): the kernel encrypts what the pods
// of two nodes send to each other as ESP in tunnel mode (RFC 4303), and strongSwan's
// daemon negotiates the keys by IKEv2, with a secret that all nodes share. There is no
// device: packets leave by the host's own routes, and policies of the kernel select
// them by their addresses. Peers need nothing more than a lease's addresses.
package ipsec

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// Kind is the backend's row in the program's table (cmd/flanneld/backends.go). V4Only need
// not list Windows, for which parse refuses the backend.
func Kind() backend.Kind {
	return backend.Kind{Name: "ipsec", Parse: parse, V4Only: []string{"linux"}}
}

const (
	// defaultProposal is flannel's: AES-GCM, and an elliptic curve for new keys. The
	// rest has no meaning for ESP.
	defaultProposal = "aes128gcm16-sha256-prfsha256-ecp256"
	// minSecret and maxSecret are limits of the secret in bytes: flannel's, and that of
	// strongSwan's protocol (VICI), whose values have a length of 16 bits.
	minSecret, maxSecret = 96, 1<<16 - 1
)

// encryption and otherAlgorithm match the names that strongSwan 5.9 has for algorithms
// of ESP. Of further key exchanges (ke1_…), which are new, only the form is checked.
var (
	encryption = regexp.MustCompile(`^(null|3?des|cast128|chacha20poly1305(compat)?|(aes|camellia|blowfish|serpent|twofish)(128|192|256)?|` +
		`(aes|camellia)(128|192|256)(ctr|ccm(8|12|16|64|96|128)?)|aes(128|192|256)(gmac|gcm(8|12|16|64|96|128)?))$`)
	otherAlgorithm = regexp.MustCompile(`^((prf)?(md5|sha1|sha256|sha384|sha512|aesxcbc|aescmac|camelliaxcbc)|sha|md5_128|sha1_160|(sha|sha2_)256_96|sha2_(256|384|512)|` +
		`modp(768|1024|1536|2048|3072|4096|6144|8192|1024s160|2048s(224|256)|none|null)|none|ecp(192|224|256|384|521)|ecp(224|256|384|512)bp|` +
		`curve25519|x25519|curve448|x448|ntru(112|128|192|256)|newhope128|(mlkem|ke[1-7]_)[a-z0-9_]{1,32}|(no)?esn)$`)
)

// checkProposal returns what is wrong with a proposal, which is a list of algorithms with
// dashes between them; "": nothing. Which algorithms go together, and which the kernel has,
// is found out by charon, strongSwan's daemon.
func checkProposal(proposal string) string {
	encrypts := false
	for name := range strings.SplitSeq(proposal, "-") {
		switch {
		case encryption.MatchString(name):
			encrypts = true
		case !otherAlgorithm.MatchString(name):
			return fmt.Sprintf("%.80q is not an algorithm that strongSwan has for ESP", name)
		}
	}
	if !encrypts {
		return fmt.Sprintf("%.80q has no encryption algorithm", proposal)
	}
	return ""
}

// options are those of the configuration's Backend object.
type options struct {
	secret   *dataplane.SharedSecret // a pointer, since fmt shows unexported fields; not nil
	proposal string                  // for ESP, in strongSwan's notation
	udpEncap bool                    // ESP in UDP, even without NAT
}

// overhead returns the bytes that ESP adds to a packet; inUDP is for ESP in UDP.
func overhead(inUDP bool) int {
	return dataplane.TraitsOf(dataplane.IPsec{UDPEncap: inUDP}).Overhead(false)
}

// parse implements backend.Kind.Parse. An empty ESPProposal means the default, and the Maker
// has no warnings.
func parse(o *conf.Object, os string) backend.Maker {
	secret := dataplane.SharedSecret(o.String("PSK", ""))
	opts := options{&secret, o.String("ESPProposal", defaultProposal), o.Bool("UDPEncap", false)}
	if n := len(secret); n < minSecret || n > maxSecret {
		o.Problem("PSK", "the secret that all nodes share has %d characters, and %d or more are needed; create one with: openssl rand -hex 48", n, minSecret)
	}
	if opts.proposal == "" {
		opts.proposal = defaultProposal
	}
	if problem := checkProposal(opts.proposal); problem != "" {
		o.Problem("ESPProposal", "%s; a proposal is a list such as %s", problem, defaultProposal)
	}
	if os == "windows" {
		o.Problem("Type", "ipsec is not supported on Windows; use vxlan or host-gw in a cluster with Windows nodes")
	}
	return func(n backend.Node) (backend.Backend, []string, error) {
		n.V6 = false // so that Shared yields IPv4 only; by V4Only it is false already
		i := ipsec{backend.Plain{Node: n, Name: "ipsec"}, opts}
		return i, nil, n.FitMTU(n.Underlay.MTU, "ESP", overhead(opts.udpEncap), false)
	}
}

// ipsec implements backend.Backend. Describe publishes no data, as Plain does.
type ipsec struct {
	backend.Plain
	options
}

// Wire returns a name with a fingerprint of the secret, since nodes with different ones
// do not reach each other. UDPEncap may differ. Echo is false: no device of ours has an
// address of the subnet, and the bridge of the pods exists only on nodes with pods. Keys
// that two nodes have negotiated prove the secret and the proposal. Without Hops, no packet
// with a low hop limit is sent: the kernel's answer would not arrive.
func (i ipsec) Wire() backend.Wire {
	sum := sha256.Sum256([]byte("flannel ipsec secret\n" + string(*i.secret)))
	return backend.Wire{Name: fmt.Sprintf("ipsec, %s, secret with fingerprint %x", i.proposal, sum[:4]), Paths: true, Keys: true, Bridges: true}
}

// ForWindows implements backend.Backend.
func (ipsec) ForWindows() string {
	return "Backend: Type is ipsec, which Windows nodes do not have; use vxlan with VNI 4096 and Port 4789, or host-gw"
}

// MTU implements backend.Backend.
func (i ipsec) MTU() int { return i.Underlay.MTU - overhead(i.udpEncap) }

// Devices implements backend.Backend: the underlay, as a device that encrypts. Shared yields
// the one IPv4 endpoint of local.
func (i ipsec) Devices(local subnet.Lease) []dataplane.Device {
	device := i.UnderlayDevice()
	for e := range i.Shared(&local) {
		device.Kind = dataplane.IPsec{Local: i.Underlay.V4, ID: i.Underlay.PublicV4, Subnet: e.Subnet,
			Secret: *i.secret, Proposal: i.proposal, UDPEncap: i.udpEncap}
	}
	return []dataplane.Device{device}
}

// Paths implements backend.Backend. A peer's packets leave through the underlay, where
// policies of the kernel encrypt them.
func (i ipsec) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range i.Shared(peer) {
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: i.Underlay.Name, Encap: dataplane.ESP{}})
	}
	return paths, nil
}
