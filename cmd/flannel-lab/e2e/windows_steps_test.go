package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// long is the timeout for waits that involve several simulated machines and
// Wine.
const long = 5 * time.Minute

// order sends an order to the simulated machine of a Windows node.
func order(t *testing.T, n *lab.Node, o windows.Order) windows.Report {
	t.Helper()
	r, err := n.Windows.Do(o)
	must(t, err)
	return r
}

// hnsChanges returns the calls that changed something on a Windows node since
// its log was emptied.
func hnsChanges(t *testing.T, n *lab.Node) (calls []string) {
	t.Helper()
	for _, c := range order(t, n, windows.Order{}).Changes() {
		calls = append(calls, c.String())
	}
	return calls
}

// networkOf returns the only network of a Windows node, which is flannel's.
func networkOf(n *lab.Node) (hns.Network, error) {
	r, err := n.Windows.Report()
	if err != nil {
		return hns.Network{}, err
	}
	if len(r.Networks) != 1 {
		return hns.Network{}, fmt.Errorf("%s has %d networks", n.Name, len(r.Networks))
	}
	return hns.DecodeNetwork(r.Networks[0])
}

func networkNow(t *testing.T, n *lab.Node) hns.Network {
	t.Helper()
	network, err := networkOf(n)
	must(t, err)
	return network
}

// podRoute reports whether a route leads to pods.
func podRoute(r hns.Route) bool {
	return netip.MustParsePrefix(lab.Network4).Contains(r.Dst.Addr()) ||
		netip.MustParsePrefix(lab.Network6).Contains(r.Dst.Addr())
}

// hnsEntries returns everything that flanneld keeps on a Windows node, one item
// per line.
func hnsEntries(n *lab.Node) (string, error) {
	r, err := n.Windows.Report()
	if err != nil {
		return "", err
	}
	var lines []string
	for _, doc := range r.Networks {
		network, err := hns.DecodeNetwork(doc)
		if err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprintf("network %s %s on %s %+v", network.Name, network.Type, network.Adapter,
			network.Subnets))
		for _, p := range network.Policies {
			if p.IsRemoteSubnet() {
				remote, err := p.RemoteSubnet()
				if err != nil {
					return "", err
				}
				lines = append(lines, fmt.Sprintf("policy %+v", remote))
			}
		}
	}
	for _, doc := range r.Endpoints {
		e, err := hns.DecodeEndpoint(doc)
		if err != nil {
			return "", err
		}
		if strings.HasSuffix(e.Name, "_ep") {
			lines = append(lines, fmt.Sprintf("endpoint %s %v", e.Name, e.IPs))
		}
	}
	for _, route := range r.Routes {
		if podRoute(route) {
			lines = append(lines, fmt.Sprintf("route %s via %s", route.Dst, route.NextHop))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// hnsEntriesOf returns what hnsEntries should return, derived from the leases
// only.
func hnsEntriesOf(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	var lines []string
	for key, v := range leases(t, l) {
		var subnets []hns.Subnet
		var ours []netip.Prefix // addresses of the host on a bridge
		for part := range strings.SplitSeq(key, "&") {
			p := netip.MustParsePrefix(strings.Replace(part, "-", "/", 1))
			subnets = append(subnets, hns.Subnet{Prefix: p, Gateway: p.Addr().Next()})
			ours = append(ours, netip.PrefixFrom(p.Addr().Next().Next(), p.Bits()))
		}
		subnet := subnets[0].Prefix
		local, vxlan := v.PublicIP == n.IP4.String(), v.BackendType == "vxlan" && v.BackendData != nil
		switch {
		case local && vxlan:
			subnets[0].VSID = uint32(v.BackendData.VNI) // IPv4 only
			lines = append(lines, fmt.Sprintf("network flannel.%d Overlay on Ethernet %+v", v.BackendData.VNI,
				subnets[:1]))
		case local && v.BackendType == "host-gw":
			lines = append(lines, fmt.Sprintf("network cbr0 L2Bridge on Ethernet %+v", subnets),
				fmt.Sprintf("endpoint cbr0_ep %v", ours))
		case vxlan:
			mac, err := dataplane.ParseMAC(v.BackendData.VtepMAC)
			must(t, err)
			lines = append(lines, fmt.Sprintf("policy %+v", hns.RemoteSubnet{
				Prefix: subnet, VSID: uint32(v.BackendData.VNI), Provider: netip.MustParseAddr(v.PublicIP), MAC: mac,
			}))
		case v.BackendType == "host-gw":
			lines = append(lines, fmt.Sprintf("route %s via %s", subnet, v.PublicIP))
			if len(subnets) > 1 {
				lines = append(lines, fmt.Sprintf("route %s via %s", subnets[1].Prefix, *v.PublicIPv6))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// unchanged restarts flanneld.exe with further arguments, and checks that the
// network keeps its ID and that no call changes anything.
func unchanged(t *testing.T, l *lab.Lab, n *lab.Node, args ...string) {
	t.Helper()
	id := networkNow(t, n).ID
	stoppedByCtrlC(t, n)
	order(t, n, windows.Order{ForgetLog: true})
	began := time.Now()
	must(t, n.StartWith(append(slices.DeleteFunc(n.Args(), func(arg string) bool { return strings.HasPrefix(arg, "-iface") }), args...)...))
	must(t, n.Ready(t.Context()))
	withinOf(t, long, "all peers are counted", func() error {
		return has(t, n, fmt.Sprintf("flanneld_peers %d", len(leases(t, l))-1))
	})
	t.Logf("ready %v after a start with %v", time.Since(began).Round(time.Millisecond), args)
	if got := hnsChanges(t, n); len(got) > 0 {
		t.Errorf("a restart with %v changed\n%s", args, strings.Join(got, "\n"))
	}
	if after := networkNow(t, n).ID; after != id {
		t.Errorf("a restart with %v made another network: %s was %s", args, after, id)
	}
	waitSynced(t, l, n)
}

// exitedCleanly reports whether flanneld.exe exited with status 0, or Wine has
// lost the status.
func exitedCleanly(code int) bool { return code == 0 || lab.WineDied(code) }

func stoppedByCtrlC(t *testing.T, n *lab.Node) {
	t.Helper()
	began := time.Now()
	code, err := n.Stop(t.Context())
	must(t, err)
	t.Logf("%s: Ctrl-C ended flanneld.exe after %v", n.Name, time.Since(began).Round(time.Millisecond))
	if !exitedCleanly(code) {
		t.Errorf("%s: exit status of flanneld.exe after Ctrl-C is %d", n.Name, code)
	}
}

func addressIs(n *lab.Node) func(hns.Address) bool {
	return func(a hns.Address) bool { return a.Prefix.Addr() == n.IP4 }
}

// checkMachine checks that a Windows node has no open handles, and that the
// simulated machine had no errors.
func checkMachine(t *testing.T, n *lab.Node) {
	t.Helper()
	r := order(t, n, windows.Order{})
	if len(r.Trouble) > 0 {
		t.Errorf("the simulated machine of %s: %v", n.Name, r.Trouble)
	}
	// A call may still be running.
	withinOf(t, long, "handles are closed", func() error {
		if open := order(t, n, windows.Order{}).OpenObjects; len(open) > 0 {
			return fmt.Errorf("these objects are open: %q", open)
		}
		return nil
	})
}

// forgetLog empties the log of the simulated machine.
func forgetLog(t *testing.T, n *lab.Node) {
	t.Helper()
	order(t, n, windows.Order{ForgetLog: true})
}
