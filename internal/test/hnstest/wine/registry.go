package wine

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf16"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// configChange is what the DHCP client does when it is notified: it reads the
// registry, which is Wine's. The arguments are the adapter's GUID in text, and
// the values of its key: EnableDHCP, IPAddress, SubnetMask, DefaultGateway,
// DefaultGatewayMetric, InterfaceMetric, MTU; empty if there is no such value.
func (p program) configChange(args [][]byte) hns.Code {
	if len(args) != 8 {
		return api.InvalidArg
	}
	a, found := p.byText(args[0])
	if !found {
		return hns.FileNotFound
	}
	stored := hns.Persistent{DHCP: number(args[1]) != 0, Metric: number(args[6]), MTU: number(args[7])}
	masks, metrics := multiString(args[3]), multiString(args[5])
	for i, text := range multiString(args[2]) {
		ip, err := netip.ParseAddr(text)
		if err != nil || i >= len(masks) {
			return api.InvalidArg
		}
		ones, _ := net.IPMask(net.ParseIP(masks[i]).To4()).Size()
		stored.Addrs = append(stored.Addrs, netip.PrefixFrom(ip, ones))
	}
	for i, text := range multiString(args[4]) {
		ip, err := netip.ParseAddr(text)
		if err != nil || i >= len(metrics) {
			return api.InvalidArg
		}
		metric, _ := strconv.Atoi(metrics[i])
		stored.Gateways = append(stored.Gateways, hns.Gateway{Addr: ip, Metric: metric})
	}
	return code(p.machine.SetPersistent(a.Index, stored))
}

// byText returns the adapter whose GUID is the text, which has braces.
func (p program) byText(text []byte) (hns.Adapter, bool) {
	for _, a := range p.machine.Admin().Adapters() {
		if strings.EqualFold("{"+a.GUID+"}", string(text)) {
			return a, true
		}
	}
	return hns.Adapter{}, false
}

// number decodes a REG_DWORD.
func number(raw []byte) int {
	if len(raw) != 4 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(raw))
}

// multiString decodes a REG_MULTI_SZ.
func multiString(raw []byte) (all []string) {
	units := make([]uint16, len(raw)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	return strings.FieldsFunc(string(utf16.Decode(units)), func(r rune) bool { return r == 0 })
}
