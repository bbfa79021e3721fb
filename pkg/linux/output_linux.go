package linux

import (
	"cmp"
	"regexp"
	"strings"
)

// lastLines returns the last lines of what wireguard-go or charon has printed, up to a number. It drops the last message
// of a charon that ends, which gives no reason.
func lastLines(output string, number int) string {
	var lines []string
	for line := range strings.Lines(output) {
		line = logPrefix.ReplaceAllLiteralString(strings.TrimSpace(line), "")
		line = strings.ToValidUTF8(line[:min(len(line), 200)], "")
		if line != "" && !strings.HasPrefix(line, "initialization failed") {
			lines = append(lines, line)
		}
	}
	return cmp.Or(strings.Join(lines[max(0, len(lines)-number):], "; "), "it printed nothing: see the system's log")
}

// logPrefix is the beginning of messages: level, device and time (wireguard-go), or thread and subsystem (charon). With
// time or thread, each retry could have another error, which would be logged, and in Kubernetes
// written to the Node, each time.
var logPrefix = regexp.MustCompile(`^(ERROR: \(.*\) \d{4}/\d\d/\d\d \d\d:\d\d:\d\d |\d\d\[[A-Z]+\] *)`)
