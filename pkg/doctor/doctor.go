// Package doctor checks a Snapshot of a node for known problems. Each check is
// a pure function, so that it can be tested on every operating system. Package
// probe makes the Snapshot; nothing here accesses the machine.
//
// A check is a row in one of the tables (daemonChecks, linuxChecks, windowsChecks and
// so on): its code, its two texts, the system, what it needs to know of the Snapshot
// (needs.go), and a function. The function returns a Finding, made by ok, warn, fail,
// skip or undecidable. Examine runs all of them, one after the other, for the command
// doctor.
package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is the result of a check.
type Verdict string

const (
	// OK means that the check found no problem.
	OK Verdict = "ok"
	// Warn means that it may cause a problem, now or later.
	Warn Verdict = "warn"
	// Fail means that it is a problem.
	Fail Verdict = "fail"
	// Undecided means that the check applies, but could not be made or decided;
	// Finding.Seen gives the reason.
	Undecided Verdict = "unknown"
	// Skipped means that the check does not apply, or depends on what another check
	// reports as missing; Finding.Seen gives the reason.
	Skipped Verdict = "skipped"
)

// Finding is the verdict of a check on one node, with its reason.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`          // what the check found; with Undecided and Skipped, the reason
	Fix     string  `json:"fix,omitempty"` // what the operator should do; only with Warn and Fail
	// Cause and Peers are set by checks of the way to other nodes that found a problem.
	Cause Cause    `json:"cause,omitempty"`
	Peers []string `json:"peers,omitempty"` // names, as in the status
}

// Check looks for one known problem.
type Check struct {
	Code    string   // "FL101"; its meaning never changes
	Title   string   // the finding if there is no problem
	Problem string   // the finding if there is one
	Systems []string // values of runtime.GOOS
	needs   needs
	run     func(Snapshot) Finding // only called if the Snapshot has what it needs
}

// Result is a check with its finding. Title states it in general: the state that
// was found, or with Undecided and Skipped what the question was.
type Result struct {
	Code  string `json:"code"`
	Title string `json:"title"`
	Finding
}

var (
	anySystem = []string{"linux", "windows"}
	linux     = []string{"linux"}
	windows   = []string{"windows"}
)

// Checks returns all checks, sorted by code.
func Checks() []Check {
	return slices.Concat(daemonChecks(), linuxChecks(), cniChecks(), clusterChecks(), windowsChecks(), pathChecks())
}

// Examine runs all checks; those for other systems are skipped.
func Examine(s Snapshot) (results []Result) {
	for _, c := range Checks() {
		found := c.examine(s)
		results = append(results, Result{c.Code, c.title(found.Verdict), found})
	}
	return results
}

// title returns the headline of a result: what is right, what is wrong, or what is not
// known.
func (c Check) title(v Verdict) string {
	switch v {
	case OK:
		return c.Title
	case Warn, Fail:
		return c.Problem
	}
	return "whether " + c.Title
}

// otherSystem begins the reason of a check that is skipped because it is for other
// systems.
const otherSystem = "not on this system"

// examine makes the check, if it is meant for this system, and if what it needs is
// known.
func (c Check) examine(s Snapshot) Finding {
	if !slices.Contains(c.Systems, s.OS) {
		return skip("%s, only on %s", otherSystem, strings.Join(c.Systems, ", "))
	}
	for _, need := range c.needs {
		if missing := need(s); missing.Verdict != "" {
			return missing
		}
	}
	return c.run(s)
}

// Count returns the number of results with the verdict.
func Count(results []Result, v Verdict) (n int) {
	for _, r := range results {
		if r.Verdict == v {
			n++
		}
	}
	return n
}

// The functions below make Findings. fix is what the user can do.

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Seen: fmt.Sprintf(format, args...)}
}

func skip(format string, args ...any) Finding {
	return Finding{Verdict: Skipped, Seen: fmt.Sprintf(format, args...)}
}

func undecidable(format string, args ...any) Finding {
	return Finding{Verdict: Undecided, Seen: fmt.Sprintf(format, args...)}
}

func warn(fix, format string, args ...any) Finding {
	return Finding{Verdict: Warn, Seen: fmt.Sprintf(format, args...), Fix: fix}
}

func fail(fix, format string, args ...any) Finding {
	return Finding{Verdict: Fail, Seen: fmt.Sprintf(format, args...), Fix: fix}
}
