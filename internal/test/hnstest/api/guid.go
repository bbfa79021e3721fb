package api

import (
	"crypto/rand"
	"fmt"
)

// NoID in a call leaves the choice of a GUID to HNS.
const NoID = "00000000-0000-0000-0000-000000000000"

// NewGUID returns a random GUID.
func NewGUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
