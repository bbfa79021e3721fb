package system

import (
	"context"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/linux"
)

// New opens the kernel's tables and begins to watch them. The caller closes it.
func New(o Options) (dataplane.Dataplane, error) { return linux.New(o) }

// What the commands of an administrator do.
var (
	Cleanup  = linux.Cleanup
	Handback = linux.Handback
)

// Prepare has nothing to do: making a network takes the host's address away on Windows alone.
func Prepare(context.Context, Options, dataplane.Device, func(error)) (dataplane.Prepared, error) {
	return dataplane.Prepared{}, nil
}
