package vxlan

import (
	"fmt"
	"strings"
)

// What HNS takes without more: VNIs below are for VLANs there, and another port needs HNS 10.3. Above mostVSID Windows'
// kube-proxy does not find the network: it reads the IsolationId of our policies as a number of 16 bits.
const (
	leastVSID   = 4096
	mostVSID    = 1<<16 - 1
	windowsPort = 4789
	linuxPort   = 8472 // the kernel's own, where the configuration names none
)

// ForWindows says in a sentence what keeps a Linux node with these options and Windows nodes apart, and what to change;
// "": nothing. Port 0 is one that the configuration does not name.
func ForWindows(vni, port int, directRouting bool) string {
	var wrong, fix []string
	switch {
	case vni < leastVSID:
		wrong = append(wrong, fmt.Sprintf("VNI is %d and Windows takes none below %d", vni, leastVSID))
		fix = append(fix, fmt.Sprintf("VNI to %d", leastVSID))
	case vni > mostVSID:
		wrong = append(wrong, fmt.Sprintf("VNI is %d and kube-proxy on Windows reads none above %d", vni, mostVSID))
		fix = append(fix, fmt.Sprintf("VNI to %d", leastVSID))
	}
	switch {
	case port == 0:
		wrong = append(wrong, fmt.Sprintf("Port is not given, which is %d for Linux and %d for Windows", linuxPort, windowsPort))
		fix = append(fix, fmt.Sprintf("Port to %d", windowsPort))
	case port != windowsPort:
		wrong = append(wrong, fmt.Sprintf("Port is %d, which only Windows Server 2022 and later can", port))
		fix = append(fix, fmt.Sprintf("Port to %d if there are older ones", windowsPort))
	}
	if directRouting {
		wrong = append(wrong, "DirectRouting is on, and Windows does not take what comes past the tunnel")
		fix = append(fix, "DirectRouting to false")
	}
	if len(wrong) == 0 {
		return ""
	}
	return "Backend: " + strings.Join(wrong, "; ") + ". Set " + strings.Join(fix, ", ") + " in the one configuration of all nodes"
}

// ForWindows implements backend.Mixed.
func (v vxlan) ForWindows() string { return ForWindows(v.vni, v.port, v.directRouting) }

// ForWindows has nothing to say on Windows itself, where the options were read as what Windows can.
func (overlay) ForWindows() string { return "" }
