package probe

import (
	"fmt"

	"golang.org/x/sys/windows/registry"

	"flannel/pkg/doctor"
)

// firmware reads vendor and product of the firmware (SMBIOS) from the registry.
func firmware() (doctor.Machine, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `HARDWARE\DESCRIPTION\System\BIOS`, registry.QUERY_VALUE)
	if err != nil {
		return doctor.Machine{}, fmt.Errorf("read the firmware's vendor and product: %w", err)
	}
	defer key.Close() //nolint:errcheck // nothing was written
	vendor, _, err := key.GetStringValue("SystemManufacturer")
	if err != nil {
		return doctor.Machine{}, fmt.Errorf("read the firmware's vendor and product: %w", err)
	}
	product, _, _ := key.GetStringValue("SystemProductName") // the vendor is enough
	return doctor.Machine{Vendor: vendor, Product: product}, nil
}
