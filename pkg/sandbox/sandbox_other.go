//go:build !linux

package sandbox

import "errors"

func noNetwork() error { return errors.ErrUnsupported }
