package sourcevip

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"flannel/pkg/file"
)

// The CNI plugin host-local keeps the addresses that it gave away in a directory for each network
// (https://www.cni.dev/plugins/current/ipam/host-local): a file for each, named as the address, which holds the ID of
// the container and, in a second line, the name of its interface. Whoever changes something holds the lock of the file
// "lock" there. Colons of IPv6 are underscores on Windows; overlays have no IPv6.

const owner = "kube-proxy\r\nsource-vip" // host-local has this end of line on every system

type store string

func (s store) path(a netip.Addr) string { return filepath.Join(string(s), a.String()) }

// lock makes the directory, too: on a new node no pod has been there yet.
func (s store) lock(ctx context.Context) (unlock func() error, err error) {
	if err := os.MkdirAll(string(s), 0o755); err != nil {
		return nil, fmt.Errorf("make host-local's directory: %w", err)
	}
	return file.Lock(ctx, filepath.Join(string(s), "lock"))
}

// maxEntry bounds what is read of a file, in bytes.
const maxEntry = 4 << 10

// list returns who has which address; ours are apart.
func (s store) list() (ours []netip.Addr, others map[netip.Addr]bool, err error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list host-local's addresses: %w", err)
	}
	others = map[netip.Addr]bool{}
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // the lock, and the last address that was given away
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var text []byte
		if err == nil && info.Size() < maxEntry {
			text, err = os.ReadFile(s.path(a))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read host-local's addresses: %w", err)
		}
		if strings.TrimSpace(string(text)) == owner {
			ours = append(ours, a) // in the order of names
		} else {
			others[a] = true
		}
	}
	return ours, others, nil
}

func (s store) reserve(a netip.Addr) error {
	if err := file.Replace(s.path(a), []byte(owner)); err != nil {
		return fmt.Errorf("reserve %s: %w", a, err)
	}
	return nil
}

func (s store) release(a netip.Addr) error {
	if err := os.Remove(s.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", a, err)
	}
	return nil
}
