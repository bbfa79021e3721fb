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

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/encap"
	"flannel/subnet"
)

// Kind is the backend's row in the program's table.
func Kind() backend.Kind {
	return backend.Kind{Name: "ipsec", Parse: parse, V4Only: []string{"linux"}}
}

const (
	// defaultProposal is flannel's: AES-GCM, and an elliptic curve for new keys. The
	// rest has no meaning for ESP.
	defaultProposal = "aes128gcm16-sha256-prfsha256-ecp256"
	// minSecret and maxSecret are limits of the secret in bytes: flannel's, and that of
	// strongSwan's protocol.
	minSecret, maxSecret = 96, 1<<16 - 1
)

// proposal matches strongSwan's notation, but not several proposals.
var proposal = regexp.MustCompile(`^[a-z0-9_]{1,32}(-[a-z0-9_]{1,32}){0,9}$`)

type options struct {
	secret   *dataplane.SharedSecret // a pointer, since fmt shows unexported fields; not nil
	proposal string
	udpEncap bool
}

func parse(o *conf.Object, os string) backend.Maker {
	secret := dataplane.SharedSecret(o.String("PSK", ""))
	opts := options{&secret, o.String("ESPProposal", defaultProposal), o.Bool("UDPEncap", false)}
	if n := len(secret); n < minSecret || n > maxSecret {
		o.Problem("PSK", "the secret that all nodes share has %d characters, and %d or more are needed; create one with: openssl rand -hex 48", n, minSecret)
	}
	if opts.proposal == "" {
		opts.proposal = defaultProposal
	}
	if !proposal.MatchString(opts.proposal) {
		o.Problem("ESPProposal", "%.80q is not a proposal, which is a list of algorithms such as %s", opts.proposal, defaultProposal)
	}
	if os == "windows" {
		o.Problem("Type", "ipsec is not supported on Windows; use vxlan or host-gw in a cluster with Windows nodes")
	}
	return func(n backend.Node) (backend.Backend, []string, error) {
		n.V6 = false
		i := ipsec{backend.Plain{Node: n, Name: "ipsec"}, opts}
		if overhead := encap.IPsec(opts.udpEncap); i.MTU() < backend.MinMTU(false) {
			return nil, nil, fmt.Errorf("the MTU of %s is %d, which leaves %d for pods after ESP's %d; raise it to %d or more",
				n.Underlay.Name, n.Underlay.MTU, i.MTU(), overhead, backend.MinMTU(false)+overhead)
		}
		return i, nil, nil
	}
}

type ipsec struct {
	backend.Plain
	options
}

// Wire returns a name with a fingerprint of the secret, since nodes with different ones
// do not reach each other. Echo is false: no device of ours has an address of the
// subnet, and the bridge of the pods exists only on nodes with pods.
func (i ipsec) Wire() backend.Wire {
	sum := sha256.Sum256([]byte("flannel ipsec secret\n" + string(*i.secret)))
	return backend.Wire{Name: fmt.Sprintf("ipsec, %s, secret with fingerprint %x", i.proposal, sum[:4]), Paths: true, Bridges: true}
}

// ForWindows implements backend.Mixed.
func (ipsec) ForWindows() string {
	return "Backend: Type is ipsec, which Windows nodes do not have; use vxlan with VNI 4096 and Port 4789, or host-gw"
}

func (i ipsec) MTU() int { return i.Underlay.MTU - encap.IPsec(i.udpEncap) }

// Devices returns the underlay, as a device that encrypts, once the node has a subnet.
func (i ipsec) Devices(local subnet.Lease) []dataplane.Device {
	device := i.UnderlayDevice()
	for e := range i.Shared(&local) {
		device.Kind = dataplane.IPsec{Local: i.Underlay.V4, ID: i.Underlay.PublicV4, Subnet: e.Subnet,
			Secret: *i.secret, Proposal: i.proposal, UDPEncap: i.udpEncap}
	}
	return []dataplane.Device{device}
}

func (i ipsec) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	var paths []*dataplane.Path
	for e := range i.Shared(peer) {
		paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: i.Underlay.Name, Encap: dataplane.ESP{}})
	}
	return paths, nil
}
