// Package instance distinguishes several flanneld processes on one host. Each has its
// own subnet file, and gets a name from its path. The names of firewall chains and
// tables, and the IDs of nexthop objects, are made from it, so that the processes do
// not change each other's.
package instance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"runtime"
)

// defaultFile is the subnet file of a host with one flanneld; flannel uses it, too.
const defaultFile = "/run/flannel/subnet.env"

// Of returns the name of the instance with this subnet file: seven hexadecimal
// digits, or "" for defaultFile, with which chains and tables have flannel's names.
func Of(subnetFile string) string {
	path, err := filepath.Abs(subnetFile)
	if err != nil {
		path = subnetFile
	}
	// A file may have several paths: /var/run is a link to /run.
	path = filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
	if path == defaultFile || runtime.GOOS == "windows" { // on Windows, nothing is named after the instance
		return ""
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:4])[:7]
}

// resolve follows the symbolic links in the path of a directory. If the directory does
// not exist, it follows those in the part of the path that exists, so that the
// instance has the same name before and after the directory is created.
func resolve(dir string) string {
	if found, err := filepath.EvalSymlinks(dir); err == nil || dir == filepath.Dir(dir) {
		return cmp.Or(found, dir)
	}
	return filepath.Join(resolve(filepath.Dir(dir)), filepath.Base(dir))
}
