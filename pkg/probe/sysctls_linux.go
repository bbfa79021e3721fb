package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"flannel/pkg/doctor"
)

// unusual are the values of devices' parameters that keep packets of pods from being
// forwarded as they should.
var unusual = map[string]string{
	"net/ipv4/conf/*/forwarding": "0", "net/ipv4/conf/*/disable_xfrm": "1", "net/ipv4/conf/*/disable_policy": "1",
	"net/ipv6/conf/*/disable_ipv6": "1",
}

// sysctls reads the kernel parameters that the doctor checks. Those of the bridge
// exist only while the module br_netfilter is loaded; a missing one has no entry, and
// neither has a usual value of a device.
func sysctls() (doctor.Sysctls, error) {
	const root = "/proc/sys/"
	values := doctor.Sysctls{}
	for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if raw, err := os.ReadFile(root + path); err == nil {
			values[path] = strings.TrimSpace(string(raw))
		}
	}
	for pattern, value := range unusual {
		files, err := filepath.Glob(root + pattern)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", pattern, err)
		}
		for _, file := range files {
			if raw, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(raw)) == value {
				values[strings.TrimPrefix(file, root)] = value
			}
		}
	}
	return values, nil
}
