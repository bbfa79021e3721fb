package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"flannel/pkg/file"
)

// hostLocal is host-local's directory for one network
// (https://www.cni.dev/plugins/current/ipam/host-local). For each address in use it
// has a file, named as the address, with the ID of the container and, in a second
// line, the name of its interface. A program that changes something there holds the
// lock of the file "lock"; only list may be called without it, for what may change at
// once. On Windows, host-local writes underscores for the colons of IPv6.
type hostLocal string

// The content of our reservations: of the source VIP, and of the addresses of the
// host's endpoint on an L2Bridge. host-local ends lines with \r\n on every system.
const (
	vipOwner  = "kube-proxy\r\nsource-vip"
	hostOwner = "flanneld\r\nhost-endpoint"
)

// path returns the path of an address's file.
func (s hostLocal) path(a netip.Addr) string {
	name := a.String()
	if runtime.GOOS == "windows" {
		name = strings.ReplaceAll(name, ":", "_")
	}
	return filepath.Join(string(s), name)
}

// parseName returns the address that a file of host-local stands for; an error for the
// lock, and for the file with the last address given to a pod.
func parseName(name string) (netip.Addr, error) {
	return netip.ParseAddr(strings.ReplaceAll(name, "_", ":"))
}

// lockWithin bounds the wait for host-local's lock, which host-local holds for
// moments only.
const lockWithin = 10 * time.Second

// lock waits for host-local's lock; the caller must unlock it. It creates the
// directory first if it is missing: on a new node, host-local has not run yet.
func (s hostLocal) lock(ctx context.Context) (unlock func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	if err := file.MkdirAll(string(s)); err != nil {
		return nil, fmt.Errorf("create host-local's directory: %w", err)
	}
	return file.Lock(ctx, filepath.Join(string(s), "lock"))
}

// maxEntry bounds the size of a file, in bytes: a longer one is not ours and is not
// read.
const maxEntry = 4 << 10

// list returns our reservations, sorted by file name, and the addresses that others
// have. A directory that does not exist has none.
func (s hostLocal) list() (ours []netip.Addr, others map[netip.Addr]bool, err error) {
	entries, err := os.ReadDir(string(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list host-local's addresses: %w", err)
	}
	others = map[netip.Addr]bool{}
	for _, e := range entries {
		a, err := parseName(e.Name())
		if err != nil {
			continue
		}
		info, err := e.Info()
		var text []byte
		if err == nil && info.Size() < maxEntry {
			text, err = os.ReadFile(s.path(a))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // host-local has released the address meanwhile
		} else if err != nil {
			return nil, nil, fmt.Errorf("read host-local's addresses: %w", err)
		}
		if owner := strings.TrimSpace(string(text)); owner == vipOwner || owner == hostOwner {
			ours = append(ours, a)
		} else {
			others[a] = true
		}
	}
	return ours, others, nil
}

// reserve writes the file of an address, if it has other content.
func (s hostLocal) reserve(a netip.Addr, owner string) error {
	if _, err := file.Put(s.path(a), []byte(owner), 0o644); err != nil {
		return fmt.Errorf("reserve %s: %w", a, err)
	}
	return nil
}

// release removes the file of an address. The caller holds the lock, and knows that
// the reservation is ours.
func (s hostLocal) release(a netip.Addr) error {
	if err := os.Remove(s.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", a, err)
	}
	return nil
}
