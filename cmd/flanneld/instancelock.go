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

// causeHeld is a value of the attribute cause in the log.
const causeHeld = "file-held"

// holdInstance makes sure that no other flanneld works with the subnet file, and so with the
// devices, routes and rules of that instance, until release is called or this process
// ends. It waits for another one to end, at most patience; then the error is a
// file.HeldError. If the lock cannot be created (a file system without locks), it
// only logs that. pod is the name of this process's pod, "" if it runs in none.
func holdInstance(ctx context.Context, subnetFile, pod string, log *slog.Logger, patience time.Duration) (release func() error, err error) {
	path := status.Lock(subnetFile)
	who := fmt.Sprintf("PID %d", os.Getpid())
	if pod != "" { // the PID is in the pod's PID namespace
		who += " of pod " + pod
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	release, err = file.Hold(bounded, path, who, func(e *file.HeldError) {
		if patience > 0 {
			log.Warn("another flanneld with the same subnet file runs; waiting for it to end", "cause", causeHeld, "holder", e.Holder, "lock", e.Path, "for", patience)
		}
	})
	held, isHeld := errors.AsType[*file.HeldError](err)
	switch {
	case isHeld:
		return nil, fmt.Errorf("another flanneld (%s) runs with the subnet file %s: stop it, or use a different --subnet-file, --etcd-prefix and network: %w",
			held.Holder, subnetFile, err)
	case ctx.Err() != nil: // the process is to end
		return nil, ctx.Err()
	case err != nil:
		log.Warn("could not lock the subnet file; make sure that no other flanneld runs with it", "lock", path, "error", err)
		return func() error { return nil }, nil
	}
	return release, nil
}
