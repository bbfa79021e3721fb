//go:build !windows

package cniplugin

import "context"

// FindEndpoint is nil where there is no HNS.
var FindEndpoint func(ctx context.Context, name string) (Endpoint, error)

// EndTogether is nothing to do where a lock tells that a delegate lives on.
func EndTogether() error { return nil }
