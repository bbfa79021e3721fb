package system

import (
	"context"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/extension"
	"flannel/pkg/linux"
)

// New opens the kernel's tables and starts to watch them. The caller closes it.
func New(o Options) (dataplane.Dataplane, error) {
	d, err := linux.New(o)
	if err != nil {
		return nil, err
	}
	return extension.New(d, o), nil
}

// The functions of the commands cleanup and handback.
var (
	Cleanup  = linux.Cleanup
	Handback = linux.Handback
)

// Prepare does nothing: the host's address moves on Windows only.
func Prepare(context.Context, Options, dataplane.Device, func(error)) (dataplane.Prepared, error) {
	return dataplane.Prepared{}, nil
}
