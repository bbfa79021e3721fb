package wine

import (
	"cmp"
	"net/netip"
	"strings"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// ipHelper makes a call of iphlpapi.dll on behalf of a program in Wine. Arguments and results
// are structures in their memory layout (layout.go). A nil result is an empty one. Server.answer
// calls it.
func (p program) ipHelper(function string, args [][]byte) (*blob, hns.Code) {
	if len(args) == 0 {
		return nil, api.InvalidArg
	}
	switch function {
	case "GetAdaptersAddresses":
		all, err := p.machine.Adapters()
		return adapterBlob(withFilters(all)), code(err)
	case "GetIfTable2Ex":
		return &blob{bytes: table(p.ifRows())}, 0
	case "GetIpForwardTable2":
		all, err := p.machine.Routes()
		return &blob{bytes: table(forwardRows(all, args[0]))}, code(err)
	case "GetBestRoute2":
		return p.bestRoute(args[0])
	case "CreateIpForwardEntry2", "SetIpForwardEntry2", "DeleteIpForwardEntry2":
		var row forwardRow
		if !unpack(args[0], &row) {
			return nil, api.InvalidArg
		}
		return nil, p.machine.ChangeRoute(function, row.route())
	case "GetIpInterfaceEntry", "SetIpInterfaceEntry":
		return p.interfaceEntry(function, args[0])
	case "CreateUnicastIpAddressEntry":
		var row unicastRow
		if !unpack(args[0], &row) || int(row.Bits) > row.Address.addr().BitLen() {
			return nil, api.InvalidArg
		}
		return nil, code(p.machine.AddAddress(index(row.LUID, row.Index),
			netip.PrefixFrom(row.Address.addr(), int(row.Bits))))
	case "DeleteUnicastIpAddressEntry":
		var row unicastRow
		if !unpack(args[0], &row) {
			return nil, api.InvalidArg
		}
		return nil, code(p.machine.DeleteAddress(index(row.LUID, row.Index), row.Address.addr()))
	case "SetInterfaceDnsSettings":
		return nil, p.dnsSettings(args)
	case "DhcpNotifyConfigChange":
		return nil, p.configChange(args)
	case "NotifyIpInterfaceChange", "NotifyUnicastIpAddressChange", "NotifyRouteChange2", "CancelMibChangeNotify2":
		number, code := p.Notify(function, string(args[0]))
		return &blob{bytes: []byte(number)}, code
	}
	return p.convert(function, args[0])
}

// code returns the code of an error, in the form of the IP Helper API; 0 for
// nil.
func code(err error) hns.Code {
	if e, ok := err.(*hns.Error); ok {
		if e.Code == hns.AlreadyExists {
			return hns.ObjectExists
		}
		return e.Code
	}
	return 0
}

// withFilters adds the filter drivers of each adapter, which Windows lists as
// adapters with indexes of their own.
func withFilters(adapters []hns.Adapter) []hns.Adapter {
	rows := adapters
	for _, a := range adapters {
		if !a.Loopback {
			rows = append(rows, filter(a))
		}
	}
	return rows
}

// filterName is the end of the name of a filter driver.
const filterName = "-WFP Native MAC Layer LightWeight Filter-0000"

// filter returns the filter driver of an adapter.
func filter(a hns.Adapter) hns.Adapter {
	return hns.Adapter{
		Name: a.Name + filterName, Description: a.Description + filterName, Index: a.Index + 1<<16, MTU: a.MTU,
		MAC: a.MAC, Up: true,
		GUID: "f" + a.GUID[1:],
	}
}

// ifRows returns the rows of GetIfTable2Ex.
func (p program) ifRows() (rows []ifRow) {
	for _, a := range withFilters(p.machine.Admin().Adapters()) {
		row := toIfRow(a)
		if strings.HasSuffix(a.Name, filterName) {
			row.Flags = filterFlag
		}
		rows = append(rows, row)
	}
	return rows
}

// forwardRows returns the rows of GetIpForwardTable2. familyOnly is an address family, of which
// the first byte counts: empty or 0 for both.
func forwardRows(routes []hns.Route, familyOnly []byte) (rows []forwardRow) {
	for _, r := range routes {
		row := toForwardRow(r)
		if len(familyOnly) == 0 || familyOnly[0] == 0 || uint16(familyOnly[0]) == row.Dst.Family {
			rows = append(rows, row)
		}
	}
	return rows
}

// bestRoute returns the row of the best route, and behind it the source address.
func (p program) bestRoute(destination []byte) (*blob, hns.Code) {
	var dst sockaddr
	if !unpack(destination, &dst) || !dst.addr().IsValid() {
		return nil, api.InvalidArg
	}
	r, source, err := p.machine.BestRoute(dst.addr())
	if err != nil {
		return nil, code(err)
	}
	return &blob{bytes: append(pack(toForwardRow(r)), pack(toSockaddr(source))...)}, 0
}

// interfaceEntry reads or writes the settings of a family on an adapter.
func (p program) interfaceEntry(function string, raw []byte) (*blob, hns.Code) {
	var row interfaceRow
	if !unpack(raw, &row) {
		return nil, api.InvalidArg
	}
	i, v6 := index(row.LUID, row.Index), row.Family == inet6
	if function == "SetIpInterfaceEntry" {
		if !v6 && row.SitePrefixLen > 32 { // must be 0 for IPv4, by the documentation, though it is not 0 when read
			return nil, api.InvalidArg
		}
		to := hns.Interface{Forwarding: row.Forwarding != 0, MTU: int(row.MTU)}
		if row.AutoMetric == 0 { // else 0: automatic
			to.Metric = int(row.Metric)
		}
		return nil, code(p.machine.SetInterface(i, v6, to))
	}
	settings, err := p.machine.Interface(i, v6)
	if err != nil {
		return nil, code(err)
	}
	// As on Windows, the SitePrefixLength that is read (64) is refused when it
	// is written back.
	row.LUID, row.Index, row.SitePrefixLen, row.Connected = luid(i), uint32(i), 64, 1
	row.Forwarding, row.AutoMetric = flag(settings.Forwarding), flag(settings.Metric == 0)
	row.Metric, row.MTU = uint32(cmp.Or(settings.Metric, hnstest.UsualMetric)), uint32(settings.MTU)
	return &blob{bytes: pack(row)}, 0
}

func flag(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// dnsSettings sets the DNS servers of one family, or the registration in DNS.
// Its arguments are the GUID of the adapter, the flags, the list of servers, and
// whether to register.
func (p program) dnsSettings(args [][]byte) hns.Code {
	if len(args) < 4 || len(args[1]) != 8 || len(args[3]) != 4 {
		return api.InvalidArg
	}
	a, found := p.byGUID(args[0])
	if !found {
		return hns.ElementNotFound
	}
	if args[1][0]&8 != 0 { // DNS_SETTING_REGISTRATION_ENABLED
		return code(p.machine.SetDNSRegistration(a.Index, args[3][0] != 0))
	}
	v6 := args[1][0]&1 != 0 // DNS_SETTING_IPV6
	var servers []netip.Addr
	for _, s := range strings.FieldsFunc(string(args[2]), func(r rune) bool { return r == ',' || r == ' ' }) {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Is6() != v6 {
			return api.InvalidArg
		}
		servers = append(servers, ip)
	}
	return p.machine.ChangeDNS(a.Index, v6, servers)
}

// byGUID returns the adapter with this GUID, in its memory layout.
func (p program) byGUID(raw []byte) (hns.Adapter, bool) {
	for _, a := range p.machine.Admin().Adapters() {
		if g := guid(a.GUID); string(g[:]) == string(raw) {
			return a, true
		}
	}
	return hns.Adapter{}, false
}

// convert answers the ConvertInterface…To… calls, which translate between
// index, LUID, GUID and alias of an adapter.
func (p program) convert(function string, raw []byte) (*blob, hns.Code) {
	for _, a := range p.machine.Admin().Adapters() {
		g := guid(a.GUID)
		names := map[string][]byte{"Index": pack(uint32(a.Index)), "Luid": pack(luid(a.Index)), "Guid": g[:],
			"Alias": []byte(a.Name)}
		from, to, ok := strings.Cut(strings.TrimPrefix(function, "ConvertInterface"), "To")
		if ok && string(names[from]) == string(raw) {
			return &blob{bytes: names[to]}, 0
		}
	}
	return nil, hns.ElementNotFound
}
