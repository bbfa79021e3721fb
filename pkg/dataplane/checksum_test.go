package dataplane

import (
	"bytes"
	"slices"
	"testing"
)

// The checksum of RFC 1071's example, of a header of IPv4 without and with the right one, and of odd lengths.
func TestChecksum(t *testing.T) {
	header := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	sealed := slices.Replace(slices.Clone(header), 10, 12, 0xb8, 0x61)
	for _, c := range []struct {
		in   []byte
		want uint16
	}{{[]byte{0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7}, 0x220d}, {header, 0xb861}, {sealed, 0}, {nil, 0xffff}, {[]byte{1}, 0xfeff}, {bytes.Repeat([]byte{0xff}, 1499), 0x00ff}} {
		if got := Checksum(c.in); got != c.want {
			t.Errorf("%x: %#x, want %#x", c.in, got, c.want)
		}
	}
}
