//go:build !linux && !windows

package probe

import (
	"context"
	"errors"
	"runtime"
	"time"

	"flannel/pkg/doctor"
)

// system returns no probes: the doctor skips the checks that need them.
func system(Options, *doctor.Snapshot) []probe { return nil }

// Documents returns nil: they exist only on Windows.
func Documents(context.Context, time.Duration) map[string][]byte { return nil }

func firmware() (doctor.Machine, error) {
	return doctor.Machine{}, errors.New("not examined on " + runtime.GOOS)
}

// KubeProxyDSR reports nothing: only Windows has direct server return.
func KubeProxyDSR() (dsr, known bool) { return false, false }
