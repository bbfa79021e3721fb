package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// tools are the commands that the lab and flanneld run, each with its package.
// Debian, Ubuntu, Fedora, Alpine and Arch use the same names, except for ping's
// package.
var tools = []struct{ name, pkg string }{
	{"ip", "iproute2"},
	{"bridge", "iproute2"},
	{"iptables", "iptables"},
	{"ping", "iputils-ping (iputils)"},
}

// CheckTools returns an error that lists every program that the lab needs and
// that is missing, each with the way to get it. It also calls SetPath.
func CheckTools(o Options) error {
	SetPath(o.BinDir)
	var missing []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.name); err != nil {
			missing = append(missing, fmt.Sprintf("%s (package %s)", t.name, t.pkg))
		}
	}
	if o.Kube {
		for _, path := range []string{o.kubeBinary(), o.Manifest} {
			if _, err := os.Stat(path); err != nil {
				missing = append(missing, path+": run 'make kube'")
			}
		}
	}
	if o.Windows > 0 {
		for _, path := range []string{o.flanneldExe(), o.wineRun(), filepath.Join(o.BinDir, "cni", "win-overlay.exe")} {
			if _, err := os.Stat(path); err != nil {
				missing = append(missing, path+": run 'make wine cross-windows-amd64'")
			}
		}
	}
	for _, path := range []string{o.Etcd, filepath.Join(o.BinDir, "cni", "flannel"),
		filepath.Join(o.BinDir, "cni", "bridge"), filepath.Join(o.BinDir, "cni", "host-local")} {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, path+": run 'make tools'")
		}
	}
	if _, err := os.Stat(o.Flanneld); err != nil {
		missing = append(missing, o.Flanneld+": run 'make build'")
	}
	if missing == nil {
		return nil
	}
	return errors.New("missing: " + strings.Join(missing, "; "))
}

// SetPath appends bin and the system directories to PATH. sudo and CI systems
// often leave out the sbin directories.
func SetPath(bin string) {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, dir := range []string{bin, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	_ = os.Setenv("PATH", strings.Join(dirs, string(os.PathListSeparator)))
}
