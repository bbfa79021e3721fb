package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// A row of .ci/paths says what a change below a path needs beyond the tests of its packages and of those that import them.
type row struct {
	path  string
	needs []string // of the words in needWords
	files []string // patterns of files of end-to-end tests, without _test.go

	importers []string // of the packages that import it, those that `make changed` tests; none: all
}

// needWords are the words that a row can have.
var needWords = []string{
	"kernels", // all tests of dist/kernels.sh
	"wine",    // all tests under Wine
	"release", // a release
	"systems", // other architectures
	"soak",    // make soak, of which make test runs two minutes anyway
}

// parseRows reads lines of a path, words, e2e=PATTERN,PATTERN and importers=FOLDER,FOLDER; # begins a comment.
func parseRows(text string) (rows []row, err error) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		r := row{path: fields[0]}
		if slices.ContainsFunc(rows, func(o row) bool { return o.path == r.path }) {
			return nil, fmt.Errorf("%s has two rows", r.path)
		}
		for _, word := range fields[1:] {
			patterns, endToEnd := strings.CutPrefix(word, "e2e=")
			importers, some := strings.CutPrefix(word, "importers=")
			switch {
			case some:
				r.importers = append(r.importers, strings.Split(importers, ",")...)
			case endToEnd:
				r.files = append(r.files, strings.Split(patterns, ",")...)
			case slices.Contains(needWords, word):
				r.needs = append(r.needs, word)
			default:
				return nil, fmt.Errorf("row %s: %q is neither e2e=… nor importers=… nor one of %s", r.path, word, strings.Join(needWords, ", "))
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// rowOf returns the row of the longest path that a file or folder is at or below.
func rowOf(rows []row, name string) (best row, found bool) {
	for _, r := range rows {
		if (name == r.path || strings.HasPrefix(name, r.path+"/")) && len(r.path) >= len(best.path) {
			best, found = r, true
		}
	}
	return best, found
}

// matches reports whether a file of end-to-end tests, such as guard_peers_test.go, is one of those that the row names.
func (r row) matches(file string) bool {
	return slices.ContainsFunc(r.files, func(pattern string) bool {
		ok, err := path.Match(pattern, strings.TrimSuffix(file, "_test.go"))
		return ok && err == nil
	})
}
