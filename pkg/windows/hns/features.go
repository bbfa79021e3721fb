package hns

import "fmt"

// Version is the version of HNS. Windows Server 2019 has 9.x, Windows Server 2022 has 13.x or higher.
type Version struct{ Major, Minor int }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// atLeast reports whether a version is that one or a later one.
func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Features are the abilities of an HNS that matter to a pod network.
type Features struct {
	RemoteSubnet  bool // policy RemoteSubnetRoute; without it a peer is a remote endpoint
	HostRoute     bool // policy HostRoute: host and pods reach each other
	DSR           bool // direct server return, for kube-proxy
	VxlanPort     bool // a UDP port other than 4789
	IPv6DualStack bool
}

// Features returns the features of a version, according to Microsoft's documentation and hcsshim's release notes.
func (v Version) Features() Features {
	return Features{
		RemoteSubnet: v.atLeast(9, 2),
		HostRoute:    v.atLeast(9, 2),
		// It was backported to 9.3, while 10.0 and 10.1 lack it.
		DSR:           v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2),
		VxlanPort:     v.atLeast(10, 3),
		IPv6DualStack: v.atLeast(11, 10),
	}
}
