package hns

// SetInterfaceDnsSettings is documented from build 19041 on, so Windows Server 2019 may lack it. Its predecessor is the
// registry, in HKLM\SYSTEM\CurrentControlSet\Services\Tcpip (or Tcpip6)\Parameters\Interfaces\{GUID}
// (https://learn.microsoft.com/troubleshoot/windows-server/networking, "TCP/IP and NBT configuration parameters", and
// "How to enable or disable DNS updates"):
//
//	NameServer             REG_SZ, addresses with commas or spaces between them; SetInterfaceDnsSettings writes it, too
//	RegistrationEnabled    REG_DWORD; older: DisableDynamicUpdate, the inverse
//
// The DNS client reads it when it starts, and when its parameters change (SERVICE_CONTROL_PARAMCHANGE).

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// interfaces6Key is interfacesKey (persistent_windows.go) for IPv6.
const interfaces6Key = `SYSTEM\CurrentControlSet\Services\Tcpip6\Parameters\Interfaces\`

// lacksDNSSettings reports whether an error says that this Windows has no SetInterfaceDnsSettings.
func lacksDNSSettings(err error) bool {
	return errors.Is(err, windows.ERROR_PROC_NOT_FOUND)
}

// storeDNS stores the DNS servers of a family in the registry.
func storeDNS(guid *windows.GUID, v6 bool, servers string) error {
	path := interfacesKey
	if v6 {
		path = interfaces6Key
	}
	return storeDNSValues(path+guid.String(), func(key registry.Key) error { return key.SetStringValue("NameServer", servers) })
}

// ManualDNS implements Stack. What is no address is left out.
func (ipHelper) ManualDNS(index int) (servers []netip.Addr, err error) {
	guid, err := guidOf(index)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{interfacesKey, interfaces6Key} {
		text, err := readNameServer(path + guid.String())
		if err != nil {
			return nil, err
		}
		for _, name := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
			if ip, err := netip.ParseAddr(name); err == nil {
				servers = append(servers, ip.WithZone(""))
			}
		}
	}
	return servers, nil
}

// readNameServer returns the value NameServer of a key, "" if there is none.
func readNameServer(path string) (string, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE)
	if errors.Is(err, registry.ErrNotExist) {
		return "", nil // the adapter lacks the family
	} else if err != nil {
		return "", ipHelperError("RegOpenKeyEx", err)
	}
	defer key.Close()
	text, _, err := key.GetStringValue("NameServer")
	if errors.Is(err, registry.ErrNotExist) || errors.Is(err, registry.ErrUnexpectedType) { // Windows ignores another type
		return "", nil
	}
	return text, ipHelperError("RegQueryValueEx NameServer", err)
}

// storeDNSRegistration stores whether an adapter's addresses are registered in DNS.
func storeDNSRegistration(guid *windows.GUID, on bool) error {
	enabled := uint32(0)
	if on {
		enabled = 1
	}
	return storeDNSValues(interfacesKey+guid.String(), func(key registry.Key) error {
		return errors.Join(key.SetDWordValue("RegistrationEnabled", enabled), key.SetDWordValue("DisableDynamicUpdate", 1-enabled))
	})
}

// storeDNSValues calls set with the key of an adapter, and makes the DNS client read it.
func storeDNSValues(path string, set func(registry.Key) error) error {
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, path, registry.SET_VALUE)
	if err != nil {
		return ipHelperError("RegCreateKeyEx", err)
	}
	defer key.Close()
	if err := set(key); err != nil {
		return ipHelperError("RegSetValueEx", err)
	}
	// The settings are stored, so the call succeeds also without the notification: the DNS client may refuse it, or not
	// run, and reads the registry by itself or at the next boot.
	_ = notifyDNSClient()
	return nil
}

// notifyDNSClient makes the DNS client read the registry now.
func notifyDNSClient() error {
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return ipHelperError("OpenSCManager", err)
	}
	defer func() { _ = windows.CloseServiceHandle(manager) }()
	name, err := windows.UTF16PtrFromString("Dnscache")
	if err != nil {
		return err
	}
	service, err := windows.OpenService(manager, name, windows.SERVICE_PAUSE_CONTINUE)
	if err != nil {
		return ipHelperError("OpenService Dnscache", err)
	}
	defer func() { _ = windows.CloseServiceHandle(service) }()
	var status windows.SERVICE_STATUS
	return ipHelperError("ControlService Dnscache", windows.ControlService(service, windows.SERVICE_CONTROL_PARAMCHANGE, &status))
}
