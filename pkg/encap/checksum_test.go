package encap

import (
	"bytes"
	"testing"
)

// The checksum of RFC 1071's example, and of odd lengths.
func TestChecksum(t *testing.T) {
	for _, c := range []struct {
		in   []byte
		want uint16
	}{{[]byte{0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7}, 0x220d}, {nil, 0xffff}, {[]byte{1}, 0xfeff}, {bytes.Repeat([]byte{0xff}, 1499), 0x00ff}} {
		if got := Checksum(c.in); got != c.want {
			t.Errorf("%x: %#x, want %#x", c.in, got, c.want)
		}
	}
}
