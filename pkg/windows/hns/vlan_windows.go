package hns

import (
	"strconv"
	"strings"

	"golang.org/x/sys/windows/registry"
)

// netClassKey has a key for each adapter, with the settings of its driver (https://learn.microsoft.com/windows-hardware/
// drivers/network, OID_GEN_VLAN_ID):
//
//	NetCfgInstanceId   REG_SZ, the GUID in braces
//	VlanID             REG_SZ or REG_DWORD
const netClassKey = `SYSTEM\CurrentControlSet\Control\Class\{4d36e972-e325-11ce-bfc1-08002be10318}`

// VLAN implements Stack.
func (ipHelper) VLAN(guid string) int {
	class, err := registry.OpenKey(registry.LOCAL_MACHINE, netClassKey, registry.ENUMERATE_SUB_KEYS)
	if err != nil {
		return 0
	}
	defer class.Close()
	names, _ := class.ReadSubKeyNames(-1) // with an error, it returns those that it read
	for _, name := range names {
		if vlan, found := driverVLAN(name, guid); found {
			return vlan
		}
	}
	return 0
}

// driverVLAN reads the VLAN of a key in the class if it is that of the adapter.
func driverVLAN(name, guid string) (vlan int, found bool) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, netClassKey+`\`+name, registry.QUERY_VALUE)
	if err != nil {
		return 0, false // such as Properties, which only the system may read
	}
	defer key.Close()
	id, _, err := key.GetStringValue("NetCfgInstanceId")
	if err != nil || !strings.EqualFold(strings.Trim(id, "{}"), guid) {
		return 0, false
	}
	if number, _, err := key.GetIntegerValue("VlanID"); err == nil {
		return int(number), true
	}
	text, _, _ := key.GetStringValue("VlanID")
	vlan, _ = strconv.Atoi(text) // 0 if there is none
	return vlan, true
}
