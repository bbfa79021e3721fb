package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// A change is what differs from a commit.
type change struct {
	since string   // the commit, for people
	all   bool     // no commit to compare with: everything counts as changed
	files []string // from the top of the repository
}

// readChange compares the working tree with the commit at which it left base; "": with nothing. of is what runs: test,
// changed or night (see makePlan).
func readChange(of, base string) (change, error) {
	if of == "night" || base == "" {
		return change{since: "nothing", all: true}, nil
	}
	since, err := git("merge-base", base, "HEAD")
	if err != nil && of == "changed" {
		return change{}, fmt.Errorf("there is no commit %q to compare with: make changed BASE=<branch or commit>: %w", base, err)
	}
	if err != nil { // an archive, or a clone without its history
		return change{since: fmt.Sprintf("nothing (this clone does not have the commit %q of %s)", base, greenFile), all: true}, nil
	}
	differ, err := git("-c", "core.quotePath=false", "diff", "--name-only", "--no-renames", since[0])
	if err != nil {
		return change{}, err
	}
	added, err := git("-c", "core.quotePath=false", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return change{}, err
	}
	files := slices.DeleteFunc(append(differ, added...), func(name string) bool { return name == greenFile }) // newer than its commit
	slices.Sort(files)
	return change{since: since[0][:12], files: slices.Compact(files)}, nil
}

// readBases returns what a run compares packages with, and the tests of a kernel: base, or the default. "": nothing.
func readBases(of, base, series string) (ofPackage, ofKernels string, err error) {
	if base != "" || of == "night" {
		return base, base, nil
	}
	if of == "changed" {
		if _, err := git("rev-parse", "--quiet", "--verify", "origin/main"); err == nil {
			return "origin/main", "origin/main", nil
		}
		return "main", "main", nil
	}
	g, err := readGreen()
	return g[ofPackages], g[ofKernel(series)], err
}

// git returns the lines that a command prints.
func git(args ...string) ([]string, error) {
	var problems strings.Builder
	cmd := exec.Command("git", args...)
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}
