package hns

// This file uses these functions of iphlpapi.dll: ConvertInterfaceIndexToLuid, ConvertInterfaceLuidToGuid,
// SetInterfaceDnsSettings. What is set is read from the registry: see dnsstore_windows.go.

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// guidOf returns the GUID of an adapter.
func guidOf(index int) (*windows.GUID, error) {
	luid, err := winipcfg.LUIDFromIndex(uint32(index))
	if err != nil {
		return nil, ipHelperError("ConvertInterfaceIndexToLuid", err)
	}
	guid, err := luid.GUID()
	return guid, ipHelperError("ConvertInterfaceLuidToGuid", err)
}

// SetDNS implements Stack. It sets the servers of each family that has one in the list, and does not change search lists.
// Unlike routes and addresses, they persist over a reboot, because Windows has no other store for them. A Windows without
// the function gets them by the registry.
func (ipHelper) SetDNS(index int, servers []netip.Addr) error {
	guid, err := guidOf(index)
	if err != nil {
		return err
	}
	families := map[uint64][]string{}
	for _, ip := range servers {
		flags := uint64(winipcfg.DnsInterfaceSettingsFlagNameserver)
		if ip.Is6() {
			flags |= winipcfg.DnsInterfaceSettingsFlagIPv6
		}
		families[flags] = append(families[flags], ip.String())
	}
	for flags, list := range families {
		text, err := windows.UTF16PtrFromString(strings.Join(list, ","))
		if err != nil {
			return err
		}
		settings := winipcfg.DnsInterfaceSettings{Version: winipcfg.DnsInterfaceSettingsVersion1, Flags: flags, NameServer: text}
		err = winipcfg.SetInterfaceDnsSettings(*guid, &settings)
		if lacksDNSSettings(err) {
			err = storeDNS(guid, flags&winipcfg.DnsInterfaceSettingsFlagIPv6 != 0, strings.Join(list, ","))
		} else {
			err = ipHelperError("SetInterfaceDnsSettings", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SetDNSRegistration implements Stack. It persists over a reboot, like SetDNS.
func (ipHelper) SetDNSRegistration(index int, on bool) error {
	guid, err := guidOf(index)
	if err != nil {
		return err
	}
	settings := winipcfg.DnsInterfaceSettings{Version: winipcfg.DnsInterfaceSettingsVersion1,
		Flags: uint64(winipcfg.DnsInterfaceSettingsFlagRegistrationEnabled)}
	if on {
		settings.RegistrationEnabled = 1
	}
	err = winipcfg.SetInterfaceDnsSettings(*guid, &settings)
	if lacksDNSSettings(err) {
		return storeDNSRegistration(guid, on)
	}
	return ipHelperError("SetInterfaceDnsSettings", err)
}
