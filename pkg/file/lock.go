package file

import (
	"context"
	"fmt"
	"time"

	"flannel/pkg/reconcile"
)

// Lock takes the exclusive lock on the file at path, and creates the file if it is
// missing. It waits for another holder until ctx ends. The lock ends with unlock or
// with the process. It also excludes other programs that use flock or, on Windows,
// LockFileEx for the first byte.
func Lock(ctx context.Context, path string) (unlock func() error, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		unlock, err = tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if unlock != nil {
			return unlock, nil
		}
		if reconcile.Pause(ctx, pause); ctx.Err() != nil {
			return nil, fmt.Errorf("lock %s, which another process holds: %w", path, ctx.Err())
		}
	}
}
