package hns

// The persistent IPv4 configuration of an adapter is in the registry, in HKLM\SYSTEM\CurrentControlSet\Services\Tcpip\
// Parameters\Interfaces\{GUID} (https://learn.microsoft.com/troubleshoot/windows-server/networking, "TCP/IP and NBT
// configuration parameters"):
//
//	EnableDHCP                                        REG_DWORD
//	IPAddress, SubnetMask                             REG_MULTI_SZ, of the same length
//	DefaultGateway, DefaultGatewayMetric              REG_MULTI_SZ, of the same length
//	InterfaceMetric, MTU                              REG_DWORD; no value: chosen by Windows
//
// The IP Helper API has no function that writes there. The DHCP client reads it at boot, and when it is notified:
//
//	dhcpcsvc.dll DhcpNotifyConfigChange(server, adapter, new address BOOL, index of the address, address, mask,
//	  0: addresses changed, 1: DHCP turned on, 2: DHCP turned off) = Win32 error
//
// That function is undocumented; programs have used it since Windows 2000.

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// interfacesKey is the key of IPv4's adapters; the GUID of one, in braces, follows.
const interfacesKey = `SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces\`

var (
	notifyConfigChange = windows.NewLazySystemDLL("dhcpcsvc.dll").NewProc("DhcpNotifyConfigChange")
	regCreateKeyEx     = windows.NewLazySystemDLL("advapi32.dll").NewProc("RegCreateKeyExW")
)

// Persistent implements Stack.
func (ipHelper) Persistent(index int) (p Persistent, err error) {
	guid, err := guidOf(index)
	if err != nil {
		return p, err
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, interfacesKey+guid.String(), registry.QUERY_VALUE)
	if err != nil {
		return p, ipHelperError("RegOpenKeyEx", err)
	}
	defer key.Close()
	// A value that is missing or of another type is empty.
	addrs, _, _ := key.GetStringsValue("IPAddress")
	masks, _, _ := key.GetStringsValue("SubnetMask")
	for i, text := range addrs[:min(len(addrs), len(masks))] {
		ip, err1 := netip.ParseAddr(text)
		mask, err2 := netip.ParseAddr(masks[i])
		if err1 == nil && err2 == nil && mask.Is4() && !ip.IsUnspecified() {
			ones, _ := net.IPMask(mask.AsSlice()).Size()
			p.Addrs = append(p.Addrs, netip.PrefixFrom(ip, ones))
		}
	}
	gateways, _, _ := key.GetStringsValue("DefaultGateway")
	metrics, _, _ := key.GetStringsValue("DefaultGatewayMetric")
	for i, text := range gateways {
		if ip, err := netip.ParseAddr(text); err == nil && !ip.IsUnspecified() {
			g := Gateway{Addr: ip}
			if i < len(metrics) {
				g.Metric, _ = strconv.Atoi(metrics[i]) // 0 if it is not a number
			}
			p.Gateways = append(p.Gateways, g)
		}
	}
	metric, _, _ := key.GetIntegerValue("InterfaceMetric")
	mtu, _, _ := key.GetIntegerValue("MTU")
	p.Metric, p.MTU = int(metric), int(mtu)
	// EnableDHCP comes last: without it, the other values are returned with the error.
	dhcp, _, err := key.GetIntegerValue("EnableDHCP")
	if errors.Is(err, registry.ErrUnexpectedType) {
		err = registry.ErrNotExist // Windows ignores another type
	}
	if err != nil {
		return p, ipHelperError("RegQueryValueEx EnableDHCP", err)
	}
	p.DHCP = dhcp != 0
	return p, nil
}

// SetPersistent implements Stack. It notifies the DHCP client unless both the registry and the adapter had DHCP on, or
// off, as p. If p has neither DHCP nor addresses, there is nothing to notify of.
func (s ipHelper) SetPersistent(index int, p Persistent) error {
	guid, err := guidOf(index)
	if err != nil {
		return err
	}
	adapters, err := s.Adapters()
	if err != nil {
		return err
	}
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, interfacesKey+guid.String(), registry.QUERY_VALUE|registry.SET_VALUE)
	if err != nil {
		return ipHelperError("RegCreateKeyEx", err)
	}
	defer key.Close()
	before, _, err := key.GetIntegerValue("EnableDHCP")
	notify := err != nil || (before != 0) != p.DHCP ||
		slices.ContainsFunc(adapters, func(a Adapter) bool { return a.Index == index && a.DHCP != p.DHCP })
	if err := writePersistent(key, p); err != nil {
		return ipHelperError("RegSetValueEx", err)
	}
	if !notify {
		return nil
	}
	if p.DHCP {
		return notifyDHCP(guid, 0, netip.Prefix{}, 1)
	}
	action := uintptr(2) // with the first address, DHCP is turned off; the others only change addresses (0)
	for i, a := range p.Addrs {
		if err := notifyDHCP(guid, i, a, action); err != nil {
			return err
		}
		action = 0
	}
	return nil
}

// writePersistent writes the values in the table above.
func writePersistent(key registry.Key, p Persistent) error {
	var addrs, masks, gateways, metrics []string
	for _, a := range p.Addrs {
		addrs = append(addrs, a.Addr().String())
		masks = append(masks, net.IP(net.CIDRMask(a.Bits(), 32)).String())
	}
	for _, g := range p.Gateways {
		gateways, metrics = append(gateways, g.Addr.String()), append(metrics, strconv.Itoa(g.Metric))
	}
	dhcp := uint32(0)
	if p.DHCP {
		dhcp = 1
	}
	errs := []error{
		key.SetStringsValue("IPAddress", addrs), key.SetStringsValue("SubnetMask", masks),
		key.SetStringsValue("DefaultGateway", gateways), key.SetStringsValue("DefaultGatewayMetric", metrics),
	}
	for name, value := range map[string]int{"InterfaceMetric": p.Metric, "MTU": p.MTU} {
		if value != 0 {
			errs = append(errs, key.SetDWordValue(name, uint32(value)))
		} else if err := key.DeleteValue(name); !errors.Is(err, registry.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// EnableDHCP comes last: until then, the other values have no effect.
	return key.SetDWordValue("EnableDHCP", dhcp)
}

// notifyDHCP makes the DHCP client read the registry. a is the address with the index i, not valid if DHCP is turned
// on. An action is 0, 1 or 2, as in the comment at the top of this file.
func notifyDHCP(guid *windows.GUID, i int, a netip.Prefix, action uintptr) error {
	name, err := windows.UTF16PtrFromString(guid.String())
	if err != nil {
		return err
	}
	if err := notifyConfigChange.Find(); err != nil {
		return &Error{Call: notifyConfigChange.Name, Code: NoSuchFunction}
	}
	var isNew, ip, mask uintptr
	if a.IsValid() {
		isNew = 1
		ip = uintptr(binary.LittleEndian.Uint32(a.Addr().AsSlice())) // in network byte order
		mask = uintptr(binary.LittleEndian.Uint32(net.CIDRMask(a.Bits(), 32)))
	}
	status, _, _ := notifyConfigChange.Call(0, uintptr(unsafe.Pointer(name)), isNew, uintptr(i), ip, mask, action)
	if status != 0 {
		return ipHelperError(notifyConfigChange.Name, windows.Errno(status))
	}
	return nil
}

// BootID implements Stack. It is kept in a volatile key of the registry, which is gone after a reboot. Unlike the time of
// the boot, it does not change with the clock.
func (ipHelper) BootID() (string, error) {
	const volatile = 1 // REG_OPTION_VOLATILE, which registry.CreateKey does not offer
	path, err := windows.UTF16PtrFromString(`SOFTWARE\flanneld\Boot`)
	if err != nil {
		return "", err
	}
	var handle windows.Handle
	status, _, _ := regCreateKeyEx.Call(uintptr(registry.LOCAL_MACHINE), uintptr(unsafe.Pointer(path)), 0, 0, volatile,
		registry.QUERY_VALUE|registry.SET_VALUE, 0, uintptr(unsafe.Pointer(&handle)), 0)
	if status != 0 {
		return "", ipHelperError("RegCreateKeyEx", windows.Errno(status))
	}
	key := registry.Key(handle)
	defer key.Close()
	if id, _, err := key.GetStringValue("ID"); err == nil && id != "" {
		return id, nil
	}
	id := rand.Text()
	return id, ipHelperError("RegSetValueEx", key.SetStringValue("ID", id))
}
