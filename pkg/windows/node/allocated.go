package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// AllocatedAddresses returns all addresses that host-local has given to pods, or that are
// reserved in its directories, in all networks. The error is fs.ErrNotExist if
// dataDir does not exist.
func AllocatedAddresses(dataDir string) (addrs []netip.Addr, err error) {
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
			if a, err := parseName(e.Name()); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, nil
}
