package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"flannel/pkg/doctor"
)

// unusual are the values of devices' parameters that keep packets of pods from being
// forwarded as they should, by the directory with one for each device.
var unusual = map[string]map[string]string{
	"net/ipv4/conf": {"forwarding": "0", "disable_xfrm": "1", "disable_policy": "1"},
	"net/ipv6/conf": {"disable_ipv6": "1"},
}

// sysctls reads the kernel parameters that the doctor checks. Those of the bridge
// exist only while the module br_netfilter is loaded; a missing one has no entry, and
// neither has a usual value of a device. root is /proc/sys.
// An error may come with those that could be read.
func sysctls(root string) (values doctor.Sysctls, unread error) {
	values = doctor.Sysctls{}
	for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		value, err := sysctl(filepath.Join(root, path))
		if err != nil {
			unread = err
		}
		if value != "" {
			values[path] = value
		}
	}
	for dir, wrongValues := range unusual {
		devices, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel may lack IPv6
			unread = fmt.Errorf("list devices' parameters: %w", err)
		}
		for _, device := range devices {
			for name, wrong := range wrongValues {
				path := dir + "/" + device.Name() + "/" + name
				value, err := sysctl(filepath.Join(root, path))
				if err != nil {
					unread = err
				}
				if value == wrong {
					values[path] = value
				}
			}
		}
	}
	return values, unread
}

// sysctl returns the value of a kernel parameter; "": it does not exist, or its device was
// deleted meanwhile.
func sysctl(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read a kernel parameter: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
