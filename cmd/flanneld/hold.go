package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/status"
)

// waitForOther is how long a daemon that starts waits for one with the same subnet file. A service manager may start
// the next one before the last has ended. So does a DaemonSet with maxSurge: the kubelet asks the health port, where the
// old one still answers, and then ends the old one.
const waitForOther = 30 * time.Second

// holdNode makes this process the only one that works with the subnet file and on what belongs to it, until release is
// called or the process ends. A lock that cannot be made (on a file system without locks) keeps nobody from working.
func holdNode(ctx context.Context, o options, log *slog.Logger, patience time.Duration) (release func() error, err error) {
	path := status.Lock(o.SubnetFile)
	who := fmt.Sprintf("PID %d", os.Getpid())
	if o.Kube.PodName != "" { // whose processes count from 1
		who += " of pod " + o.Kube.PodName
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	release, err = file.Hold(bounded, path, who, func(e *file.HeldError) {
		if patience > 0 {
			log.Warn("another flanneld with the same subnet file runs; waiting for it to end", "holder", e.Holder, "lock", e.Path, "for", patience)
		}
	})
	held := (*file.HeldError)(nil)
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("another flanneld (%s) runs with the subnet file %s: stop it, or give this one its own --subnet-file, --etcd-prefix and network: %w",
			held.Holder, o.SubnetFile, err)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		log.Warn("could not lock the subnet file; make sure that no other flanneld runs with it", "lock", path, "error", err)
		return func() error { return nil }, nil
	}
	return release, nil
}

// heldCode is the exit code of an error of holdNode, else other.
func heldCode(err error, other int) int {
	if held := (*file.HeldError)(nil); errors.As(err, &held) {
		return exitHeld
	}
	return other
}
