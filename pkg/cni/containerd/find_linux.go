package containerd

import (
	"fmt"
	"os"
)

// usualConfig is the file that containerd reads without --config.
const usualConfig = "/etc/containerd/config.toml"

// Find returns what containerd uses according to its usual configuration file. In a
// container, and where another program starts containerd with another file, there is
// none.
func Find() (CNI, error) {
	if _, err := os.Stat(usualConfig); err != nil {
		return CNI{Sources: []string{usualConfig}}, fmt.Errorf("%w: %w", ErrNone, err)
	}
	return Read(usualConfig, CNI{Conf: Setting{Dirs: []string{"/etc/cni/net.d"}}, Bin: Setting{Dirs: []string{"/opt/cni/bin"}}})
}
