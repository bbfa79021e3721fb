package main

// The name of an instance distinguishes several flanneld processes on one host. Each has its
// own subnet file, and gets a name from its path. The names of firewall chains and
// tables, and the IDs of nexthop objects, are made from it, so that the processes do
// not change each other's.

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// defaultSubnetFile is the subnet file of a host with one flanneld; flannel uses it, too.
const defaultSubnetFile = "/run/flannel/subnet.env"

// instanceOf returns the name of the instance with this subnet file: seven hexadecimal
// digits, or "" for defaultSubnetFile, with which chains and tables have flannel's names.
func instanceOf(subnetFile string) string {
	path := resolvePath(subnetFile)
	if path == defaultSubnetFile || runtime.GOOS == "windows" { // on Windows, nothing is named after the instance
		return ""
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:4])[:7]
}

// resolvePath returns the absolute path of a subnet file. A file may have several paths:
// /var/run is a link to /run.
func resolvePath(subnetFile string) string {
	path, err := filepath.Abs(subnetFile)
	if err != nil {
		path = subnetFile
	}
	return filepath.Join(resolveLinks(filepath.Dir(path)), filepath.Base(path))
}

// subnetFileOf returns the path of the subnet file of a daemon with these arguments and
// environment, or why it is not known. environ is nil if it cannot be read.
func subnetFileOf(args, environ []string) (string, error) {
	o, _ := parseOptions(args, environ) // mistakes after its subnet file do not matter
	_, given := o.given["subnet-file"]
	// Flags behind one that flanneld does not know are not read.
	named := slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "subnet-file") })
	switch {
	case environ == nil && !given: // FLANNELD_SUBNET_FILE may name any
		return "", errors.New("its environment cannot be read")
	case named && o.given["subnet-file"] != "--subnet-file": // perhaps the environment names another one, which the flag overrides
		return "", errors.New("it has unknown flags")
	case !filepath.IsAbs(o.SubnetFile): // to a working directory that is not this process's
		return "", errors.New("its subnet file is a relative path")
	}
	return resolvePath(o.SubnetFile), nil
}

// resolveLinks follows the symbolic links in the path of a directory. If the directory does
// not exist, it follows those in the part of the path that exists, so that the
// instance has the same name before and after the directory is created.
func resolveLinks(dir string) string {
	if found, err := filepath.EvalSymlinks(dir); err == nil || dir == filepath.Dir(dir) {
		return cmp.Or(found, dir)
	}
	return filepath.Join(resolveLinks(filepath.Dir(dir)), filepath.Base(dir))
}
