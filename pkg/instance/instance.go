// Package instance tells apart several flannelds on one host. Each has a subnet file of its own, and by that a name,
// which stands in the names of what they would otherwise share: chains and tables of the firewall, nexthop objects.
package instance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"runtime"
)

// usual is the subnet file of a host that has one flanneld, and that flannel has.
const usual = "/run/flannel/subnet.env"

// Of returns the name of the flanneld with that subnet file: seven hexadecimal digits, or "" for the usual file, where
// everything is called as flannel calls it.
func Of(subnetFile string) string {
	path, err := filepath.Abs(subnetFile)
	if err != nil {
		path = subnetFile
	}
	// One file may have several paths: /var/run is /run.
	path = filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
	if path == usual || runtime.GOOS == "windows" { // where nothing is shared
		return ""
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:4])[:7]
}

// resolve follows the symbolic links in a directory's path, the last parts of which may not exist: before the first start,
// and after it is deleted, it is called the same.
func resolve(dir string) string {
	if found, err := filepath.EvalSymlinks(dir); err == nil || dir == filepath.Dir(dir) {
		return cmp.Or(found, dir)
	}
	return filepath.Join(resolve(filepath.Dir(dir)), filepath.Base(dir))
}
