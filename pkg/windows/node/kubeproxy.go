package node

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"flannel/pkg/windows/hns"
)

// KubeProxy has the values on which kube-proxy's flags depend.
type KubeProxy struct {
	Minor   int            // kube-proxy's version is 1.Minor; 0: a current one
	Network string         // name of the HNS network
	VIP     netip.Addr     // source VIP; zero on an L2Bridge, which needs none
	DSR     bool           // HNS supports direct server return; without it, kube-proxy --enable-dsr exits
	Cluster []netip.Prefix // pod networks
	Gates   []string       // further feature gates, such as "WinOverlay=true"
}

// dsrSince: kube-proxy 1.33 and later have DSR without the feature gate WinDSR,
// and from 1.34 on the gate cannot be set any more. Older versions need it.
const dsrSince = 33

// Flags returns the flags of kube-proxy, with mode kernelspace, that follow from
// HNS and the node's subnet. The feature gate WinOverlay is not one of them: it is
// on by default since 1.20.
func (p KubeProxy) Flags() []string {
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

// kubeVersion matches what kube-proxy --version prints.
var kubeVersion = regexp.MustCompile(`^(?:Kubernetes )?v?1\.(\d{1,4})(?:[.+-]\S*)?$`)

// ParseKubeMinor returns N of a version 1.N of Kubernetes: "v1.33.1", or the output of
// kube-proxy --version, "Kubernetes v1.33.1".
func ParseKubeMinor(text string) (int, error) {
	m := kubeVersion.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return 0, fmt.Errorf("%.60q is not a version of Kubernetes 1, such as v1.33.1", text)
	}
	return strconv.Atoi(m[1])
}
