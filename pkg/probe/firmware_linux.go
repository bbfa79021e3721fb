package probe

import (
	"fmt"
	"os"
	"strings"

	"flannel/pkg/doctor"
)

// firmware reads vendor and product from the firmware (SMBIOS). Not every
// machine has them.
func firmware() (doctor.Machine, error) {
	var texts [2]string
	for i, name := range []string{"sys_vendor", "product_name"} {
		raw, err := os.ReadFile("/sys/class/dmi/id/" + name)
		if err != nil {
			return doctor.Machine{}, fmt.Errorf("read the firmware's vendor and product: %w", err)
		}
		texts[i] = strings.TrimSpace(string(raw))
	}
	return doctor.Machine{Vendor: texts[0], Product: texts[1]}, nil
}
