package doctor

import (
	"fmt"
	"io"
	"strings"

	"flannel/pkg/status"
)

// Print writes the results for a person: what is wrong first, then the rest, and what is for other systems in a word.
func Print(w io.Writer, all []Result) error {
	var b strings.Builder
	elsewhere := 0
	for _, v := range []Verdict{Fail, Warn, OK, Skipped} {
		for _, r := range all {
			if r.Verdict != v {
				continue
			}
			if v == Skipped && strings.HasPrefix(r.Seen, "not on this system") {
				elsewhere++
				continue
			}
			fmt.Fprintf(&b, "%s %-7s %s\n", r.Code, v, r.Title)
			fmt.Fprintf(&b, "      %s\n", status.Printable(r.Seen))
			if r.Fix != "" {
				fmt.Fprintf(&b, "      → %s\n", r.Fix)
			}
		}
	}
	fmt.Fprintf(&b, "%d fail, %d warn, %d ok, %d skipped", Count(all, Fail), Count(all, Warn), Count(all, OK), Count(all, Skipped)-elsewhere)
	if elsewhere > 0 {
		fmt.Fprintf(&b, "; %d more are not for this system", elsewhere)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}
