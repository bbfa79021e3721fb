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
	"time"

	"flannel/pkg/file"
)

// store is host-local's directory for one network
// (https://www.cni.dev/plugins/current/ipam/host-local). For each address in use it
// has a file, named as the address, with the ID of the container and, in a second
// line, the name of its interface. A program that changes something there holds the
// lock of the file "lock". (On Windows, host-local writes underscores for the colons
// of IPv6, which an overlay does not have.)
type store string

// owner is the content of our reservations. host-local ends lines with \r\n on
// every system.
const owner = "kube-proxy\r\nsource-vip"

func (s store) path(a netip.Addr) string { return filepath.Join(string(s), a.String()) }

// lockWithin bounds the wait for host-local's lock, which host-local holds for
// moments only.
const lockWithin = 10 * time.Second

// lock creates the directory first if it is missing: on a new node, host-local has
// not run yet.
func (s store) lock(ctx context.Context) (unlock func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	if err := os.MkdirAll(string(s), 0o755); err != nil {
		return nil, fmt.Errorf("create host-local's directory: %w", err)
	}
	return file.Lock(ctx, filepath.Join(string(s), "lock"))
}

// maxEntry bounds the size of a file, in bytes: a longer one is not ours and is not
// read.
const maxEntry = 4 << 10

// list returns our reservations, sorted by file name, and the addresses that others
// have. A directory that does not exist has none.
func (s store) list() (ours []netip.Addr, others map[netip.Addr]bool, err error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list host-local's addresses: %w", err)
	}
	others = map[netip.Addr]bool{}
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // the lock, and the file with the last address given to a pod
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // host-local has released the address meanwhile
		}
		var text []byte
		if err == nil && info.Size() < maxEntry {
			text, err = os.ReadFile(s.path(a))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read host-local's addresses: %w", err)
		}
		if strings.TrimSpace(string(text)) == owner {
			ours = append(ours, a)
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
