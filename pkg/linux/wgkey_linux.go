// This file reads, creates and replaces this node's private key for WireGuard. The kind
// wireguard calls it in Ensure, on the loop's goroutine. Messages have the public key
// alone.

package linux

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"flannel/pkg/dataplane"
	"flannel/pkg/file"
)

// usualKeyFile is where flannel has the private key, if WIREGUARD_KEY_FILE does not name
// another file.
const usualKeyFile = "/run/flannel/wgkey"

// wgPrivate is this node's private key, which all of its devices share. It is a pointer
// so that fmt does not show the key. nil: not known yet.
type wgPrivate struct{ key *wgtypes.Key }

// public returns the public key; zero: the private one is not known.
func (p wgPrivate) public() dataplane.PublicKey {
	if p.key == nil {
		return dataplane.PublicKey{}
	}
	return dataplane.PublicKey(p.key.PublicKey())
}

// readKey reads a private key in base64. Without the file, the result has no key, and there is no
// error. Errors do not contain the content.
func readKey(path string) (wgPrivate, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return wgPrivate{}, nil
	}
	if err != nil {
		return wgPrivate{}, fmt.Errorf("read the private key: %w", err)
	}
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(text) != wgtypes.KeyLen || wgtypes.Key(text) == (wgtypes.Key{}) {
		return wgPrivate{}, fmt.Errorf("read the private key: %s does not contain one, which has 32 bytes in base64; delete the file, and flanneld creates it again", path)
	}
	return newPrivate(wgtypes.Key(text)), nil
}

// newPrivate returns the key in the form in which a device reports it (RFC 7748,
// section 5: some of its bits are fixed).
func newPrivate(key wgtypes.Key) wgPrivate {
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return wgPrivate{&key}
}

// loadKey sets private to the first of these keys that there is: the file's; the one of this
// run, if somebody deleted the file; that of the existing device (nil or zero: none); a new one.
// Each Ensure of a device calls it, so that a new key in the file is noticed. The file then has the
// key. If the file cannot be written, private is set nevertheless, and loadKey returns an error.
// If it cannot be read, private stays, and may be unknown.
func (s *wgStore) loadKey(ofDevice *wgtypes.Key) error {
	stored, err := readKey(s.keyFile)
	if err != nil {
		return err
	}
	switch {
	case stored.key != nil:
		if s.private.key != nil && *s.private.key != *stored.key {
			s.log.Info("the private key in the file has changed", "path", s.keyFile, "publicKey", stored.public())
		}
		s.private = stored
		return nil
	case s.private.key != nil: // it is written to the file below
	case ofDevice != nil && *ofDevice != (wgtypes.Key{}):
		s.private = newPrivate(*ofDevice)
	default:
		return s.replaceKey("created this node's private key")
	}
	return s.writeKey(s.private, "wrote this node's private key to its file")
}

// replaceKey creates a new private key, and logs message. If the file cannot be written,
// a key that was known stays: the new one would not survive a restart. Without one, the new key
// is used anyway.
func (s *wgStore) replaceKey(message string) error {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return fmt.Errorf("create a private key: %w", err)
	}
	fresh := newPrivate(key)
	err = s.writeKey(fresh, message)
	if err == nil || s.private.key == nil {
		s.private = fresh
	}
	return err
}

// writeKey writes the key to the file, and logs that with a message.
func (s *wgStore) writeKey(p wgPrivate, message string) error {
	text := base64.StdEncoding.EncodeToString(p.key[:])
	if _, err := file.Put(s.keyFile, []byte(text), 0o400); err != nil {
		return fmt.Errorf("write the private key: %w", err)
	}
	s.log.Info(message, "path", s.keyFile, "publicKey", p.public())
	return nil
}
