package sourcevip

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// Held returns all addresses that host-local gives to nobody now, whoever has them, in any network whose directory is in
// dataDir. Its error is fs.ErrNotExist where there is no such directory.
func Held(dataDir string) (all []netip.Addr, err error) {
	networks, err := os.ReadDir(dataDir)
	if err != nil {
		return nil, fmt.Errorf("list host-local's networks: %w", err)
	}
	for _, n := range networks {
		if !n.IsDir() {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dataDir, n.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list host-local's addresses: %w", err)
		}
		for _, e := range entries {
			if a, err := netip.ParseAddr(e.Name()); err == nil { // else the lock, or the last address that was given away
				all = append(all, a)
			}
		}
	}
	return all, nil
}
