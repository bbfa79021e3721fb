package probe

import (
	"fmt"
	"os"
	"strings"

	"flannel/pkg/doctor"
)

// maker reads what the firmware says (SMBIOS); not every machine has one that says something.
func maker() (doctor.Machine, error) {
	var texts [2]string
	for i, name := range []string{"sys_vendor", "product_name"} {
		raw, err := os.ReadFile("/sys/class/dmi/id/" + name)
		if err != nil {
			return doctor.Machine{}, fmt.Errorf("ask the firmware for its maker: %w", err)
		}
		texts[i] = strings.TrimSpace(string(raw))
	}
	return doctor.Machine{Vendor: texts[0], Product: texts[1]}, nil
}
