package plugin

import "context"

// FindEndpoint is nil: only Windows has HNS.
var FindEndpoint func(ctx context.Context, name string) (Endpoint, error)

// KillDelegateOnExit does nothing on Linux. DEL waits for the delegate by a
// file lock instead, see savedFile.
func KillDelegateOnExit() error { return nil }
