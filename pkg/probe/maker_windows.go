package probe

import (
	"fmt"

	"golang.org/x/sys/windows/registry"

	"flannel/pkg/doctor"
)

// maker reads what the firmware says (SMBIOS), where Windows keeps it.
func maker() (doctor.Machine, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `HARDWARE\DESCRIPTION\System\BIOS`, registry.QUERY_VALUE)
	if err != nil {
		return doctor.Machine{}, fmt.Errorf("ask the firmware for its maker: %w", err)
	}
	defer key.Close() //nolint:errcheck // it only frees
	vendor, _, err := key.GetStringValue("SystemManufacturer")
	if err != nil {
		return doctor.Machine{}, fmt.Errorf("ask the firmware for its maker: %w", err)
	}
	product, _, _ := key.GetStringValue("SystemProductName") // the maker says more than that
	return doctor.Machine{Vendor: vendor, Product: product}, nil
}
