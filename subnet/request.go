package subnet

import (
	"context"
	"log/slog"
	"time"
)

// LogRequest logs a request to the store at the debug level. object is the key or the
// path that the request is about; values, which may be secrets, are not logged.
func LogRequest(log *slog.Logger, verb, object string, began time.Time, result string) {
	if TracesRequests(log) {
		log.Debug("request to the store", "verb", verb, "object", object, "result", result, "took", time.Since(began).Round(time.Microsecond))
	}
}

// TracesRequests reports whether LogRequest logs, so that its arguments are needed.
func TracesRequests(log *slog.Logger) bool { return log.Enabled(context.Background(), slog.LevelDebug) }
