// This file is the ipsec backend (Linux, IPv4): the kernel encrypts what the pods
// of two nodes send to each other as ESP in tunnel mode (RFC 4303), and strongSwan's
// daemon negotiates the keys by IKEv2, with a secret that all nodes share. There is no
// device: packets leave by the host's own routes, and policies of the kernel select
// them by their addresses. Peers need nothing more than a lease's addresses.

package backend

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

const (
	// defaultESPProposal is flannel's: AES-GCM, and an elliptic curve for new keys. The
	// rest has no meaning for ESP.
	defaultESPProposal = "aes128gcm16-sha256-prfsha256-ecp256"
	// minIPsecSecret and maxIPsecSecret are limits of the secret in bytes: flannel's, and that of
	// strongSwan's protocol (VICI), whose values have a length of 16 bits.
	minIPsecSecret, maxIPsecSecret = 96, 1<<16 - 1
)

// espEncryption and espOtherAlgorithm match the names that strongSwan 5.9 has for algorithms
// of ESP. Of further key exchanges (ke1_…), which are new, only the form is checked.
var (
	espEncryption = regexp.MustCompile(`^(null|3?des|cast128|chacha20poly1305(compat)?|(aes|camellia|blowfish|serpent|twofish)(128|192|256)?|` +
		`(aes|camellia)(128|192|256)(ctr|ccm(8|12|16|64|96|128)?)|aes(128|192|256)(gmac|gcm(8|12|16|64|96|128)?))$`)
	espOtherAlgorithm = regexp.MustCompile(`^((prf)?(md5|sha1|sha256|sha384|sha512|aesxcbc|aescmac|camelliaxcbc)|sha|md5_128|sha1_160|(sha|sha2_)256_96|sha2_(256|384|512)|` +
		`modp(768|1024|1536|2048|3072|4096|6144|8192|1024s160|2048s(224|256)|none|null)|none|ecp(192|224|256|384|521)|ecp(224|256|384|512)bp|` +
		`curve25519|x25519|curve448|x448|ntru(112|128|192|256)|newhope128|(mlkem|ke[1-7]_)[a-z0-9_]{1,32}|(no)?esn)$`)
)

// checkESPProposal returns what is wrong with a proposal, which is a list of algorithms with
// dashes between them; "": nothing. Which algorithms go together, and which the kernel has,
// is found out by charon, strongSwan's daemon.
func checkESPProposal(proposal string) string {
	encrypts := false
	for name := range strings.SplitSeq(proposal, "-") {
		switch {
		case espEncryption.MatchString(name):
			encrypts = true
		case !espOtherAlgorithm.MatchString(name):
			return fmt.Sprintf("%.80q is not an algorithm that strongSwan has for ESP", name)
		}
	}
	if !encrypts {
		return fmt.Sprintf("%.80q has no encryption algorithm", proposal)
	}
	return ""
}

// ipsecOptions are those of the configuration's Backend object.
type ipsecOptions struct {
	secret   conf.Secret
	proposal string // for ESP, in strongSwan's notation
	udpEncap bool   // ESP in UDP, even without NAT
}

// ipsecOverhead returns the bytes that ESP adds to a packet; inUDP is for ESP in UDP.
func ipsecOverhead(inUDP bool) int {
	return dataplane.TraitsOf(dataplane.IPsec{UDPEncap: inUDP}).Overhead(false)
}

// parseIPsec implements Kind.Parse. An empty ESPProposal means the default, and the Maker
// has no warnings.
func parseIPsec(o *conf.Object, os string) Maker {
	opts := ipsecOptions{o.Secret("PSK"), o.String("ESPProposal", defaultESPProposal), o.Bool("UDPEncap", false)}
	if n := len(opts.secret.Reveal()); n < minIPsecSecret || n > maxIPsecSecret {
		o.Problem("PSK", "the secret that all nodes share has %d characters, and %d or more are needed; create one with: openssl rand -hex 48", n, minIPsecSecret)
	}
	if opts.proposal == "" {
		opts.proposal = defaultESPProposal
	}
	if problem := checkESPProposal(opts.proposal); problem != "" {
		o.Problem("ESPProposal", "%s; a proposal is a list such as %s", problem, defaultESPProposal)
	}
	if os == "windows" {
		o.Problem("Type", "ipsec is not supported on Windows; use vxlan or host-gw in a cluster with Windows nodes")
	}
	return func(n Node) (Backend, []string, error) { // with an error, the caller does not use the Backend
		n.V6 = false // so that shared yields IPv4 only; by V4Only it is false already
		i := ipsec{plain{Node: n, Name: "ipsec"}, opts}
		return i, nil, n.fitMTU(n.Underlay.MTU, "ESP", ipsecOverhead(opts.udpEncap), false)
	}
}

// ipsec implements Backend. Describe publishes no data, as plain does.
type ipsec struct {
	plain
	ipsecOptions
}

// Wire returns a name with a fingerprint of the secret, since nodes with different ones
// do not reach each other. UDPEncap may differ. Echo is false: no device of ours has an
// address of the subnet, and the bridge of the pods exists only on nodes with pods. Keys
// that two nodes have negotiated prove the secret and the proposal. Without Hops, no packet
// with a low hop limit is sent: the kernel's answer would not arrive.
func (i ipsec) Wire() Wire {
	sum := sha256.Sum256([]byte("flannel ipsec secret\n" + i.secret.Reveal()))
	return Wire{Name: fmt.Sprintf("ipsec, %s, secret with fingerprint %x", i.proposal, sum[:4]), Paths: true, Keys: true, Bridges: true}
}

// ForWindows implements Backend.
func (ipsec) ForWindows() string {
	return "Backend: Type is ipsec, which Windows nodes do not have; use vxlan with VNI 4096 and Port 4789, or host-gw"
}

// MTU implements Backend.
func (i ipsec) MTU() int { return i.Underlay.MTU - ipsecOverhead(i.udpEncap) }

// Devices implements Backend: the underlay, as a device that encrypts. shared yields
// the one IPv4 endpoint of local. ID is what the secret belongs to: peers know this node by
// its public address, also where it is behind NAT.
func (i ipsec) Devices(local subnet.Lease) []dataplane.Device {
	device := i.underlayDevice()
	for e := range i.shared(&local) {
		device.Kind = dataplane.IPsec{Local: i.Underlay.V4, ID: i.Underlay.PublicV4, Subnet: e.Subnet,
			Secret: i.secret, Proposal: i.proposal, UDPEncap: i.udpEncap}
	}
	return []dataplane.Device{device}
}

// Paths implements Backend. A peer's packets leave through the underlay, where
// policies of the kernel encrypt them.
func (i ipsec) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range i.shared(peer) {
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: i.Underlay.Name, Encap: dataplane.ESP{}})
	}
	return paths, nil
}
