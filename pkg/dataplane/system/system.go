// Package system selects the driver of the operating system.
package system

import "flannel/pkg/dataplane/driver"

// Options of the driver.
type Options = driver.Options
