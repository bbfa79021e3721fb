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

// tools are the programs that the lab and flanneld call, and the package that brings each (the same name in Debian,
// Ubuntu, Fedora, Alpine and Arch, but for ping's).
var tools = []struct{ name, pkg string }{
	{"ip", "iproute2"},
	{"bridge", "iproute2"},
	{"iptables", "iptables"},
	{"ping", "iputils-ping (iputils)"},
}

// CheckTools tells what the lab would need and does not find: all of it at once, with the way to get it.
func CheckTools(o Options) error {
	SetPath(o.BinDir)
	var missing []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.name); err != nil {
			missing = append(missing, fmt.Sprintf("%s, of the package %s", t.name, t.pkg))
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
	for _, path := range []string{o.Etcd, filepath.Join(o.BinDir, "cni", "flannel"), filepath.Join(o.BinDir, "cni", "bridge"), filepath.Join(o.BinDir, "cni", "host-local")} {
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

// SetPath lets commands of the lab be found: sudo and CI often leave out the sbin directories.
func SetPath(bin string) {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, dir := range []string{bin, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	_ = os.Setenv("PATH", strings.Join(dirs, string(os.PathListSeparator)))
}
