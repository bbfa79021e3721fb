package backend

import (
	"fmt"
	"strings"
)

// Values that all versions of HNS support.
const (
	leastVSID        = 4096      // smaller ones are VLAN IDs for HNS
	mostVSID         = 1<<16 - 1 // kube-proxy reads the IsolationId of our policies as a number of 16 bits
	vxlanWindowsPort = 4789      // other ports need HNS 10.3
	vxlanLinuxPort   = 8472      // default of the Linux kernel
)

// vxlanForWindows returns a sentence about what keeps a Linux node with these options and
// Windows nodes from reaching each other, and what to change; "": nothing. Port 0
// means that the configuration has no port.
func vxlanForWindows(vni, port int, directRouting bool) string {
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
		wrong = append(wrong, fmt.Sprintf("Port is not given, which is %d for Linux and %d for Windows", vxlanLinuxPort, vxlanWindowsPort))
		fix = append(fix, fmt.Sprintf("Port to %d", vxlanWindowsPort))
	case port != vxlanWindowsPort:
		wrong = append(wrong, fmt.Sprintf("Port is %d, which only Windows Server 2022 and later can", port))
		fix = append(fix, fmt.Sprintf("Port to %d if there are older ones", vxlanWindowsPort))
	}
	if directRouting {
		wrong = append(wrong, "DirectRouting is on, and Windows does not accept packets outside of the tunnel")
		fix = append(fix, "DirectRouting to false")
	}
	if len(wrong) == 0 {
		return ""
	}
	return "Backend: " + strings.Join(wrong, "; ") + ". Set " + strings.Join(fix, ", ") + " in the one configuration of all nodes"
}

// ForWindows implements Backend.
func (v vxlan) ForWindows() string { return vxlanForWindows(v.vni, v.port, v.directRouting) }

// ForWindows returns "": parseOverlay has checked the options.
func (overlay) ForWindows() string { return "" }
