package sourcevip

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"flannel/pkg/hns"
)

// Proxy is what kube-proxy's flags depend on, of those that follow from HNS and the node's subnet.
type Proxy struct {
	Minor   int            // of its version 1.Minor; 0: a current one
	Network string         // the HNS network's name
	VIP     netip.Addr     // on an overlay; zero on an L2Bridge
	DSR     bool           // whether HNS has direct server return: a kube-proxy that shall use it ends where it is missing
	Cluster []netip.Prefix // pod networks
	Gates   []string       // further feature gates, as "WinDSR=true"
}

// dsrSince is the version 1.N of Kubernetes from which on DSR needs no feature gate; from 1.34 on that is locked.
const dsrSince = 33

// Flags are those of a kube-proxy with mode kernelspace; the others are the installer's own. (WinOverlay has been on since
// 1.20.)
func (p Proxy) Flags() []string {
	var cluster []string
	for _, c := range p.Cluster {
		cluster = append(cluster, c.String())
	}
	flags := []string{"--network-name=" + p.Network, fmt.Sprintf("--enable-dsr=%t", p.DSR)}
	if p.VIP.IsValid() {
		flags = append(flags, "--source-vip="+p.VIP.String())
	} else {
		flags = append(flags, "--root-hnsendpoint-name="+hns.HostEndpoint(p.Network))
	}
	if len(cluster) > 0 {
		flags = append(flags, "--cluster-cidr="+strings.Join(cluster, ","))
	}
	gates := p.Gates
	if p.DSR && p.Minor > 0 && p.Minor < dsrSince {
		gates = append(gates[:len(gates):len(gates)], "WinDSR=true")
	}
	if len(gates) > 0 {
		flags = append(flags, "--feature-gates="+strings.Join(gates, ","))
	}
	return flags
}

var version = regexp.MustCompile(`^(?:Kubernetes )?v?1\.(\d{1,4})(?:[.+-]\S*)?$`)

// ParseMinor reads a version of Kubernetes 1, as "v1.33.1", or as kube-proxy --version says it.
func ParseMinor(text string) (int, error) {
	m := version.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return 0, fmt.Errorf("%.60q is no version of Kubernetes 1, such as v1.33.1", text)
	}
	return strconv.Atoi(m[1])
}
