package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// greenFile names the commits at which all tests have passed: one for packages, and one for each series of kernels in a
// virtual machine. The next `make test` runs the heavy tests (see makePlan) only for what has changed since these commits.
// When it has passed, it writes bin/green, which a person commits as greenFile. `make night`, which tests everything,
// writes greenFile itself, for a person to commit.
const greenFile = ".ci/green"

// ofPackages is the row of greenFile for all tests but those in a virtual machine: packages with the race detector and
// under Wine, other architectures, the release.
const ofPackages = "packages"

// ofKernel is the row of greenFile for a series of kernels, such as 6.1. Without the row, all tests of a kernel
// run.
func ofKernel(series string) string { return "kernel-" + series }

// green has the commits of greenFile by row.
type green map[string]string

// parseGreen reads lines of a row's name and a commit; a line that begins with # is a comment. The row of packages must
// exist: each run that is recorded writes it.
func parseGreen(text string) (green, error) {
	g := green{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 2 {
			return nil, fmt.Errorf("%s: %q is not a row: want a name, such as %s, and a commit", greenFile, strings.TrimSpace(line), ofPackages)
		}
		g[words[0]] = words[1]
	}
	if g[ofPackages] == "" {
		return nil, fmt.Errorf("%s has no row %q", greenFile, ofPackages)
	}
	return g, nil
}

// readGreen reads greenFile, from the top of the repository.
func readGreen() (green, error) {
	text, err := os.ReadFile(greenFile)
	if err != nil {
		return nil, err
	}
	return parseGreen(string(text))
}

// String returns the content of greenFile.
func (g green) String() string {
	var b strings.Builder
	b.WriteString("# The commits at which all tests passed, see Documentation/testing.md, \"Which tests a change needs\".\n")
	for _, name := range slices.Sorted(maps.Keys(g)) {
		fmt.Fprintf(&b, "%-12s %s\n", name, g[name])
	}
	return b.String()
}

// cleanHead returns the commit of the working tree; "": files differ from it, so tests prove nothing about a commit.
func cleanHead() (string, error) {
	uncommitted, err := git("status", "--porcelain")
	if err != nil || len(uncommitted) > 0 {
		return "", err
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	return head[0], nil
}

// recordPassed writes the next greenFile to a file when all tests that `make test` or `make night` has planned (see plan)
// have passed: HEAD in the row of packages and in those of kernels, the series whose tests have passed, too. The plan had
// all that has changed since the commits of greenFile. Plans that have less, of `make changed` and with BASE, are not
// recorded. began is cleanHead at the start of the run: nothing is written, without an error, if there were changes that
// are not committed, then or now, or if HEAD is another commit now.
func recordPassed(began string, kernels []string, file string) error {
	head, err := cleanHead()
	if err != nil {
		return err
	}
	if head == "" || head != began {
		fmt.Printf("all tests passed; not recorded in %s, because there were changes that are not committed, or another commit\n", file)
		return nil
	}
	g, err := readGreen()
	if err != nil {
		return err
	}
	g = g.passed(head, kernels)
	if err := os.WriteFile(file, []byte(g.String()), 0o644); err != nil {
		return err
	}
	fmt.Printf("all tests passed at %.12s; to compare later runs with it, commit %s as %s\n", head, file, greenFile)
	return nil
}

// passed returns a copy of g with another commit for packages and for these kernels.
func (g green) passed(commit string, kernels []string) green {
	next := maps.Clone(g)
	next[ofPackages] = commit
	for _, series := range kernels {
		next[ofKernel(series)] = commit
	}
	return next
}
