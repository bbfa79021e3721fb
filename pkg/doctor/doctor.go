// Package doctor judges what was seen of a node: each check is a pure function over a Snapshot, so that every one of
// them can be tested on every operating system. Looking is the work of pkg/probe; nothing here touches the machine.
package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is what a check comes to.
type Verdict string

const (
	// OK means that it was looked at and nothing is wrong.
	OK Verdict = "ok"
	// Warn means that it may be the cause of trouble, or will be.
	Warn Verdict = "warn"
	// Fail means that it is wrong.
	Fail Verdict = "fail"
	// Skipped means that it was not judged; Finding.Seen says why.
	Skipped Verdict = "skipped"
)

// Finding is a check's verdict on one node.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`          // what was seen; of a skipped check, why it was
	Fix     string  `json:"fix,omitempty"` // a sentence; only with Warn and Fail
}

// Check is one thing that people run into.
type Check struct {
	Code    string // "FL101"; it never changes its meaning
	Title   string // how it shall be
	Systems []string
	judge   func(Snapshot) Finding
}

// Result is a check with its finding.
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

// Checks lists all, in the order of their codes.
func Checks() []Check {
	return slices.Concat(daemonChecks(), linuxChecks(), cniChecks(), clusterChecks(), windowsChecks())
}

// Examine applies every check.
func Examine(s Snapshot) []Result {
	var all []Result
	for _, c := range Checks() {
		r := Result{Code: c.Code, Title: c.Title}
		if slices.Contains(c.Systems, s.OS) {
			r.Finding = c.judge(s)
		} else {
			r.Finding = skip("not on this system: it is for %s", strings.Join(c.Systems, ", "))
		}
		all = append(all, r)
	}
	return all
}

// Count tells how many results have the verdict.
func Count(all []Result, v Verdict) (n int) {
	for _, r := range all {
		if r.Verdict == v {
			n++
		}
	}
	return n
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Seen: fmt.Sprintf(format, args...)}
}

func skip(format string, args ...any) Finding {
	return Finding{Verdict: Skipped, Seen: fmt.Sprintf(format, args...)}
}

func warn(fix, format string, args ...any) Finding {
	return Finding{Warn, fmt.Sprintf(format, args...), fix}
}

func fail(fix, format string, args ...any) Finding {
	return Finding{Fail, fmt.Sprintf(format, args...), fix}
}
