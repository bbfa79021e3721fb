package file

import (
	"context"
	"fmt"
	"time"
)

// Lock takes the exclusive lock on the file at path, which it makes if need be, as others do by flock or LockFileEx
// (of the first byte); it waits for who has it until ctx ends. The lock ends with the process, too.
func Lock(ctx context.Context, path string) (unlock func() error, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		unlock, err = tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s, which another process has: %w", path, ctx.Err())
		case <-time.After(pause):
		}
	}
}
