package file

import (
	"os"
	"path/filepath"
)

// SandboxMount is the variable with the root directory of a HostProcess container of
// Windows.
const SandboxMount = "CONTAINER_SANDBOX_MOUNT_POINT"

// Mounted returns the path of a file that may be in a volume of a HostProcess
// container. root is the value of SandboxMount; "": this is no such container.
//
// Such a container has the host's file system. Its volumes are at their paths only in
// a Windows with bindfltapi.dll (Server 2019 since July 2022). In an older one they
// are at the same paths below root.
func Mounted(root, path string) string {
	if root == "" || path == "" {
		return path
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	below := filepath.Join(root, path[len(filepath.VolumeName(path)):])
	if _, err := os.Stat(below); err != nil {
		return path // errors then name the path that the user knows
	}
	return below
}
