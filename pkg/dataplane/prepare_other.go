//go:build !windows

package dataplane

import "context"

// Prepare has nothing to do: making a network takes the host's address away on no other system.
func Prepare(context.Context, Options, Device, func(error)) (Prepared, error) { return Prepared{}, nil }
