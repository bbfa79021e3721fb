package dataplane

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
)

// PublicKey is the public key of a WireGuard device. Zero: none.
type PublicKey [32]byte

// errKey does not show the value: it might be a private key in the wrong place.
var errKey = errors.New("the value is not a public key, which has 32 bytes in base64 (44 characters)")

// ParsePublicKey parses a public key in base64. Keys with which WireGuard could not make
// a session are invalid.
func ParsePublicKey(text string) (PublicKey, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != len(PublicKey{}) {
		return PublicKey{}, errKey
	}
	key := PublicKey(raw)
	if slices.Contains(lowOrder, key) {
		return PublicKey{}, errors.New("the value is a point of low order, which is no public key of a node")
	}
	return key, nil
}

// lowOrder are points of Curve25519 with which every private key has the shared secret
// zero (RFC 7748, section 6.1), in their canonical form: 0, 1, the two of order 8, and
// p-1.
var lowOrder = []PublicKey{
	{},
	{1},
	{0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a,
		0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00},
	{0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b,
		0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57},
	{0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
}

// Base64 returns the key as in leases.
func (k PublicKey) Base64() string { return base64.StdEncoding.EncodeToString(k[:]) }

// String returns the key as in leases.
func (k PublicKey) String() string { return k.Base64() }

// PresharedKey is a secret of WireGuard that all nodes share. fmt and encoding/json show
// none of it. Zero: none.
type PresharedKey [32]byte

const redacted = "[redacted]" // as in package conf

func (PresharedKey) String() string { return redacted }

// Format implements fmt.Formatter, for all verbs.
func (PresharedKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements encoding.TextMarshaler, which encoding/json and slog use, too.
func (PresharedKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// SharedSecret is the text by which the nodes of an IPsec network authenticate each
// other. fmt and encoding/json show none of it, except in unexported fields.
type SharedSecret string

func (SharedSecret) String() string { return redacted }

// Format implements fmt.Formatter, for all verbs.
func (SharedSecret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements encoding.TextMarshaler, which encoding/json and slog use, too.
func (SharedSecret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
