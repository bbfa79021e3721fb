package doctor

import (
	"fmt"
	"io"
	"strings"

	"flannel/pkg/status"
)

// Print writes the results as text: problems and what is unknown; if all is set, also the
// other checks, except for checks of other systems. The last line has the number of each
// verdict.
func Print(w io.Writer, results []Result, all bool) error {
	var b strings.Builder
	otherSystems := 0
	for _, v := range []Verdict{Fail, Warn, Undecided, OK, Skipped} {
		for _, r := range results {
			if r.Verdict != v {
				continue
			}
			if v == Skipped && strings.HasPrefix(r.Seen, otherSystem) {
				otherSystems++
				continue
			}
			if !all && (v == OK || v == Skipped) {
				continue
			}
			fmt.Fprintf(&b, "%s %-7s %s\n      %s\n", r.Code, v, r.Title, status.Printable(r.Seen))
			if r.Fix != "" {
				fmt.Fprintf(&b, "      → %s\n", r.Fix)
			}
		}
	}
	fmt.Fprintf(&b, "%d fail, %d warn, %d unknown, %d ok, %d skipped", Count(results, Fail), Count(results, Warn),
		Count(results, Undecided), Count(results, OK), Count(results, Skipped)-otherSystems)
	if otherSystems > 0 {
		fmt.Fprintf(&b, "; %d checks are for other systems", otherSystems)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}
