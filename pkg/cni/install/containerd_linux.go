package install

import (
	"fmt"
	"os"
)

// usualConfig is the file that containerd reads without --config.
const usualConfig = "/etc/containerd/config.toml"

// FindContainerd returns what containerd uses according to its usual configuration file. In a
// container, and where another program starts containerd with another file, there is
// none.
func FindContainerd() (ContainerdCNI, error) {
	if _, err := os.Stat(usualConfig); err != nil {
		return ContainerdCNI{Sources: []string{usualConfig}}, fmt.Errorf("%w: %w", ErrNoContainerd, err)
	}
	return ReadContainerd(usualConfig, ContainerdCNI{Conf: ContainerdSetting{Dirs: []string{"/etc/cni/net.d"}}, Bin: ContainerdSetting{Dirs: []string{"/opt/cni/bin"}}})
}
