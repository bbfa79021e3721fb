package cniplugin

import "context"

// testEndpoint is what CHECK asks for endpoints in the process that plays the plugin.
func testEndpoint() func(context.Context, string) (Endpoint, error) { return nil }
