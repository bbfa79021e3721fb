// Package system picks the driver of the operating system that the program runs on.
package system

import "flannel/pkg/dataplane/driver"

// Options of the driver.
type Options = driver.Options
