package hns

// This file uses these functions of iphlpapi.dll:
//
//	GetAdaptersAddresses(AF_UNSPEC, SKIP_ANYCAST | SKIP_MULTICAST | INCLUDE_ALL_INTERFACES): adapters that gave their
//	  addresses to a virtual switch, too; GetIfTable2Ex(MibIfTableNormal), to know filters from adapters; FreeMibTable
//	GetIpForwardTable2(AF_UNSPEC), GetBestRoute2, InitializeIpForwardEntry, CreateIpForwardEntry2, SetIpForwardEntry2,
//	  DeleteIpForwardEntry2: rows name the adapter by InterfaceIndex, InterfaceLuid is 0
//	ConvertInterfaceIndexToLuid, InitializeIpInterfaceEntry, GetIpInterfaceEntry, SetIpInterfaceEntry: forwarding,
//	  metric, MTU
//	InitializeUnicastIpAddressEntry, CreateUnicastIpAddressEntry, DeleteUnicastIpAddressEntry
//	NotifyIpInterfaceChange, NotifyUnicastIpAddressChange, NotifyRouteChange2, CancelMibChangeNotify2

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"flannel/pkg/dataplane"
)

// ipHelper implements Stack with the IP stack of this machine. Other methods are in persistent_windows.go (the registry,
// which the next boot reads), dns_windows.go, vlan_windows.go and category_windows.go.
type ipHelper struct {
	bestRoute *windows.LazyProc // GetBestRoute2, which winipcfg lacks
}

// OpenStack returns the IP stack of this machine.
func OpenStack() (Stack, error) {
	return ipHelper{windows.NewLazySystemDLL("iphlpapi.dll").NewProc("GetBestRoute2")}, nil
}

// Adapters implements Stack.
func (ipHelper) Adapters() ([]Adapter, error) {
	const flags = winipcfg.GAAFlagSkipAnycast | winipcfg.GAAFlagSkipMulticast | winipcfg.GAAFlagIncludeAllInterfaces
	rows, err := winipcfg.GetAdaptersAddresses(windows.AF_UNSPEC, flags)
	if err != nil {
		return nil, ipHelperError("GetAdaptersAddresses", err)
	}
	interfaces, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return nil, ipHelperError("GetIfTable2Ex", err)
	}
	// The list of all interfaces includes those of filter drivers, which have an adapter's name and MAC, but no address.
	filters := map[winipcfg.LUID]bool{}
	for i := range interfaces {
		filters[interfaces[i].InterfaceLUID] = interfaces[i].InterfaceAndOperStatusFlags&winipcfg.IAOSFFilterInterface != 0
	}
	var all []Adapter
	for _, row := range rows {
		if !filters[row.LUID] {
			all = append(all, toAdapter(row))
		}
	}
	return all, nil
}

// toAdapter converts a row. It copies everything, because the memory of the row is freed afterwards.
func toAdapter(row *winipcfg.IPAdapterAddresses) Adapter {
	a := Adapter{
		Name: row.FriendlyName(), Description: row.Description(),
		GUID:  strings.ToLower(strings.Trim(row.AdapterName(), "{}")),
		Index: int(row.IfIndex), MTU: int(row.MTU),
		Up:       row.OperStatus == winipcfg.IfOperStatusUp,
		Loopback: row.IfType == winipcfg.IfTypeSoftwareLoopback,
		Kind:     kindOf(row),
		V4Metric: int(row.Ipv4Metric), V6Metric: int(row.Ipv6Metric),
		DHCP:      row.Flags&winipcfg.IPAAFlagDhcpv4Enabled != 0,
		Registers: row.Flags&winipcfg.IPAAFlagDdnsEnabled != 0,
	}
	if a.Index == 0 { // the adapter has IPv6 only
		a.Index = int(row.IPv6IfIndex)
	}
	if hw := row.PhysicalAddress(); len(hw) == len(a.MAC) {
		a.MAC = dataplane.MAC(hw)
	}
	for u := row.FirstUnicastAddress; u != nil; u = u.Next {
		if ip := toIP(u.Address); ip.IsValid() {
			a.Addrs = append(a.Addrs, Address{
				Prefix:    netip.PrefixFrom(ip, int(u.OnLinkPrefixLength)),
				Manual:    u.PrefixOrigin == int32(winipcfg.PrefixOriginManual),
				Preferred: u.DadState == int32(winipcfg.DadStatePreferred),
				Tentative: u.DadState < int32(winipcfg.DadStateDeprecated), // invalid, tentative or duplicate
				Temporary: ip.Is6() && u.SuffixOrigin == int32(winipcfg.SuffixOriginRandom),
			})
		}
	}
	for d := row.FirstDNSServerAddress; d != nil; d = d.Next {
		if ip := toIP(d.Address); ip.IsValid() {
			a.DNS = append(a.DNS, ip)
		}
	}
	return a
}

// kindOf returns the kind of an adapter. The name of the driver for teams is in the user's language, in which it may be
// another one: then a team counts as Ethernet.
func kindOf(row *winipcfg.IPAdapterAddresses) Kind {
	switch {
	case row.IfType == winipcfg.IfTypeIEEE80211:
		return WiFi
	case row.IfType == winipcfg.IfTypePPP, row.IfType == winipcfg.IfTypeTunnel,
		row.IfType == winipcfg.IfTypePropVirtual && len(row.PhysicalAddress()) == 0:
		return Tunnel
	case strings.Contains(strings.ToLower(row.Description()), "multiplexor"):
		return Team
	}
	return Ethernet
}

// toIP converts an address without its zone, which is the adapter itself; zero: it is neither IPv4 nor IPv6.
func toIP(a windows.SocketAddress) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.IP())
	return ip.Unmap()
}

func (ipHelper) Routes() ([]Route, error) {
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return nil, ipHelperError("GetIpForwardTable2", err)
	}
	var all []Route
	for i := range rows {
		all = append(all, toRoute(&rows[i]))
	}
	return all, nil
}

// toRoute converts a row to a route.
func toRoute(row *winipcfg.MibIPforwardRow2) Route {
	return Route{
		Dst:     row.DestinationPrefix.Prefix(),
		NextHop: row.NextHop.Addr().WithZone(""),
		Index:   int(row.InterfaceIndex),
		Metric:  int(row.Metric),
		Ours:    row.Protocol == winipcfg.RouteProtocolNetMgmt,
	}
}

func (s ipHelper) BestRoute(dst netip.Addr) (Route, netip.Addr, error) {
	if err := s.bestRoute.Find(); err != nil {
		return Route{}, netip.Addr{}, &Error{Call: s.bestRoute.Name, Code: NoSuchFunction}
	}
	var to, source winipcfg.RawSockaddrInet
	var row winipcfg.MibIPforwardRow2
	if err := to.SetAddr(dst); err != nil {
		return Route{}, netip.Addr{}, fmt.Errorf("best route to %s: %w", dst, err)
	}
	// The arguments 0 mean: any LUID, index and source address, and the default order of addresses.
	status, _, _ := s.bestRoute.Call(0, 0, 0, uintptr(unsafe.Pointer(&to)), 0,
		uintptr(unsafe.Pointer(&row)), uintptr(unsafe.Pointer(&source)))
	if status != 0 {
		return Route{}, netip.Addr{}, ipHelperError(s.bestRoute.Name, windows.Errno(status))
	}
	return toRoute(&row), source.Addr().WithZone(""), nil
}

// forwardRow converts a route to a row.
func forwardRow(r Route) (*winipcfg.MibIPforwardRow2, error) {
	row := &winipcfg.MibIPforwardRow2{}
	row.Init() // sets an infinite lifetime and protocol MIB_IPPROTO_NETMGMT
	row.InterfaceIndex, row.Metric = uint32(r.Index), uint32(r.Metric)
	hop := r.NextHop
	if !hop.IsValid() {
		hop = netip.PrefixFrom(r.Dst.Addr(), 0).Masked().Addr() // unspecified
	}
	return row, errors.Join(row.DestinationPrefix.SetPrefix(r.Dst.Masked()), row.NextHop.SetAddr(hop))
}

// AddRoute implements Stack. Like AddAddress, it writes to the active store, the only one that this API has.
func (ipHelper) AddRoute(r Route) error {
	row, err := forwardRow(r)
	if err != nil {
		return err
	}
	err = row.Create()
	if errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
		return ipHelperError("SetIpForwardEntry2", row.Set())
	}
	return ipHelperError("CreateIpForwardEntry2", err)
}

func (ipHelper) DeleteRoute(r Route) error {
	row, err := forwardRow(r)
	if err != nil {
		return err
	}
	if err = ipHelperError("DeleteIpForwardEntry2", row.Delete()); errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (ipHelper) Interface(index int, v6 bool) (Interface, error) {
	row, err := ipInterface(index, v6)
	if err != nil {
		return Interface{}, err
	}
	i := Interface{Forwarding: row.ForwardingEnabled, MTU: int(row.NLMTU)}
	if !row.UseAutomaticMetric {
		i.Metric = int(row.Metric)
	}
	return i, nil
}

func (ipHelper) SetInterface(index int, v6 bool, settings Interface) error {
	row, err := ipInterface(index, v6)
	if err != nil {
		return err
	}
	row.ForwardingEnabled, row.NLMTU = settings.Forwarding, uint32(settings.MTU)
	if row.UseAutomaticMetric = settings.Metric == 0; !row.UseAutomaticMetric {
		row.Metric = uint32(settings.Metric)
	}
	return ipHelperError("SetIpInterfaceEntry", row.Set())
}

// ipInterface returns all settings of a family on an adapter. To change one of them, all have to be written. (winipcfg
// makes SitePrefixLength 0 for IPv4; Windows reads it as 64, and refuses to write that.)
func ipInterface(index int, v6 bool) (*winipcfg.MibIPInterfaceRow, error) {
	luid, err := winipcfg.LUIDFromIndex(uint32(index))
	if err != nil {
		return nil, ipHelperError("ConvertInterfaceIndexToLuid", err)
	}
	family := winipcfg.AddressFamily(windows.AF_INET)
	if v6 {
		family = windows.AF_INET6
	}
	row, err := luid.IPInterface(family)
	return row, ipHelperError("GetIpInterfaceEntry", err)
}

func (ipHelper) AddAddress(index int, address netip.Prefix) error {
	luid, err := winipcfg.LUIDFromIndex(uint32(index))
	if err != nil {
		return ipHelperError("ConvertInterfaceIndexToLuid", err)
	}
	if err = ipHelperError("CreateUnicastIpAddressEntry", luid.AddIPAddress(address)); errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

func (ipHelper) DeleteAddress(index int, address netip.Addr) error {
	luid, err := winipcfg.LUIDFromIndex(uint32(index))
	if err != nil {
		return ipHelperError("ConvertInterfaceIndexToLuid", err)
	}
	row := &winipcfg.MibUnicastIPAddressRow{InterfaceLUID: luid}
	if err := row.Address.SetAddr(address); err != nil {
		return err
	}
	if err = ipHelperError("DeleteUnicastIpAddressEntry", row.Delete()); errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Watch implements Stack. It subscribes to changes of interfaces too, because an adapter that comes up does not change
// addresses or routes at first. Windows calls changed on threads of its own.
func (ipHelper) Watch(changed func()) (stop func(), err error) {
	var all []winipcfg.ChangeCallback
	stop = func() {
		for _, c := range all {
			_ = c.Unregister() // the caller could do nothing about an error
		}
	}
	add := func(c winipcfg.ChangeCallback, name string, e error) {
		if e != nil {
			err = errors.Join(err, ipHelperError(name, e))
			return
		}
		all = append(all, c)
	}
	i, e := winipcfg.RegisterInterfaceChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibIPInterfaceRow) { changed() })
	add(i, "NotifyIpInterfaceChange", e)
	a, e := winipcfg.RegisterUnicastAddressChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibUnicastIPAddressRow) { changed() })
	add(a, "NotifyUnicastIpAddressChange", e)
	r, e := winipcfg.RegisterRouteChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibIPforwardRow2) { changed() })
	add(r, "NotifyRouteChange2", e)
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// ipHelperError converts an error of Windows to an *Error with its code and Windows' text; nil for nil.
func ipHelperError(call string, err error) error {
	if err == nil {
		return nil
	}
	var code windows.Errno
	if !errors.As(err, &code) {
		return fmt.Errorf("%s: %w", call, err)
	}
	return &Error{Call: call, Code: Code(0x80070000 | uint32(code)), Detail: err.Error()}
}
