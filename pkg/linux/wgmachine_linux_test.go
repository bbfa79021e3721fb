package linux

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/nstest/ipshow"
	"flannel/pkg/dataplane"
)

const wgKeyFile = "/run/flannel/wgkey"

// peerKey returns the public key of a peer that does not exist.
func peerKey(i int) dataplane.PublicKey { return dataplane.PublicKey{9, byte(i), byte(i >> 8), 31: 1} }

func wgPath(i int, network, host, device string, port uint16) *dataplane.Path {
	dst, via := netip.MustParsePrefix(network), netip.MustParseAddr(host)
	return &dataplane.Path{Dst: dst, Via: via, Device: device,
		Encap: dataplane.WireGuardPeer{Key: peerKey(i), Endpoint: netip.AddrPortFrom(via, port), Allowed: [2]netip.Prefix{dst}}}
}

func wgPaths(i int) []*dataplane.Path {
	return []*dataplane.Path{
		wgPath(i, fmt.Sprintf("10.5.%d.0/24", i), fmt.Sprintf("192.168.100.%d", i), "flannel-wg", 51820),
		wgPath(i, fmt.Sprintf("2001:cafe:42:%d::/64", i), fmt.Sprintf("fd00:100::%d", i), "flannel-wg-v6", 51821),
	}
}

func wgDevices(k dataplane.WireGuard) []dataplane.Device {
	four, six := k, k
	four.Tunnel = dataplane.Tunnel{MTU: 1420, Parent: "eth0", Addr: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/32")}}
	six.Tunnel = dataplane.Tunnel{MTU: 1420, Parent: "eth0", Addr: []netip.Prefix{netip.MustParsePrefix("2001:cafe:42:1::/128")}}
	four.Port, six.Port = 51820, 51821
	return []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}}, {Name: "flannel-wg", Kind: four}, {Name: "flannel-wg-v6", Kind: six}}
}

// newWGMachine is newMachine with WireGuard devices and peers 2 to 4.
func newWGMachine(t *testing.T) *machine {
	m := newMachine(t)
	m.devices, m.state.Paths = wgDevices(dataplane.WireGuard{}), nil
	m.state.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("2001:cafe:42:1::/64")}
	for i := 2; i <= 4; i++ {
		m.state.Paths = append(m.state.Paths, wgPaths(i)...)
	}
	return m
}

// wgKernel returns all that belongs to WireGuard, without the private key.
func wgKernel(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	dump := wgDump(t)
	for _, dev := range []string{"flannel-wg", "flannel-wg-v6"} {
		in, err := net.InterfaceByName(dev)
		if err != nil || dump[dev] == nil {
			continue
		}
		b.WriteString(dev)
		for _, addr := range lines(t)(ipshow.Addresses(dev)) {
			b.WriteString(" " + strings.Fields(addr)[1])
		}
		fmt.Fprintf(&b, " mtu %d port %s\n", in.MTU, dump[dev][0][2])
		for _, peer := range dump[dev][1:] {
			psk := ""
			if peer[1] != "(none)" {
				psk = "psk"
			}
			fmt.Fprintln(&b, "peer", peer[0][:4], psk, peer[2], peer[3], peer[7])
		}
	}
	for _, route := range lines(t)(ipshow.Routes()) {
		if strings.Contains(route, " proto 70") || strings.HasPrefix(route, "10.5.0.0/16 ") {
			fmt.Fprintln(&b, strings.Replace(route, " proto 70", "", 1))
		}
	}
	return b.String()
}

// wgDump returns what wg shows of each device: a list of words of the device, and of each of its peers in order.
func wgDump(t *testing.T) map[string][][]string {
	t.Helper()
	devices := map[string][][]string{}
	for line := range strings.Lines(run(t, "wg show all dump 2>/dev/null || true")) { // a device may go meanwhile
		words := strings.Split(strings.TrimSpace(line), "\t")
		devices[words[0]] = append(devices[words[0]], words[1:])
	}
	for _, peers := range devices {
		slices.SortFunc(peers[1:], slices.Compare[[]string])
	}
	return devices
}

const wgSynced = `flannel-wg 10.5.1.0/32 mtu 1420 port 51820
peer CQIA  192.168.100.2:51820 10.5.2.0/24 off
peer CQMA  192.168.100.3:51820 10.5.3.0/24 off
peer CQQA  192.168.100.4:51820 10.5.4.0/24 off
flannel-wg-v6 2001:cafe:42:1::/128 mtu 1420 port 51821
peer CQIA  [fd00:100::2]:51821 2001:cafe:42:2::/64 off
peer CQMA  [fd00:100::3]:51821 2001:cafe:42:3::/64 off
peer CQQA  [fd00:100::4]:51821 2001:cafe:42:4::/64 off
10.5.0.0/16 dev flannel-wg scope link metric 65536
10.5.1.0/24 dev flannel-wg scope link metric 65536
10.5.2.0/24 dev flannel-wg scope link
10.5.3.0/24 dev flannel-wg scope link
10.5.4.0/24 dev flannel-wg scope link
2001:cafe:42:1::/64 dev flannel-wg-v6 metric 65536
2001:cafe:42:2::/64 dev flannel-wg-v6 metric 1024
2001:cafe:42:3::/64 dev flannel-wg-v6 metric 1024
2001:cafe:42:4::/64 dev flannel-wg-v6 metric 1024
2001:cafe:42::/56 dev flannel-wg-v6 metric 65536
`

func (m *machine) wantWG(t *testing.T, when, want string) {
	t.Helper()
	if got := wgKernel(t); got != want {
		t.Fatalf("%s, the system has\n%s\nwant\n%s", when, got, want)
	}
}

// identity is what the peers know of a device, and the device itself.
func identity(t *testing.T) string {
	t.Helper()
	var indexes, keys []string
	dump := wgDump(t)
	for _, dev := range []string{"flannel-wg", "flannel-wg-v6"} {
		if in, err := net.InterfaceByName(dev); err == nil && dump[dev] != nil {
			indexes, keys = append(indexes, fmt.Sprint(in.Index)), append(keys, dump[dev][0][1])
		}
	}
	return strings.Join(append(indexes, keys...), "\n") + "\n"
}

// settles waits until a condition holds.
func settles(t *testing.T, holds func() bool) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}
