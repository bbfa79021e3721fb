package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var code = regexp.MustCompile(`\bFL[0-9]{3}\b`)

// TestCodes compares the checks with a golden file, so that a code never gets
// another meaning: people have codes in their notes and alerts. Checks can be
// added, and titles reworded.
func TestCodes(t *testing.T) {
	var b strings.Builder
	for _, c := range Checks() {
		fmt.Fprintf(&b, "%s %s: %s / %s\n", c.Code, strings.Join(c.Systems, ", "), c.Title, c.Problem)
	}
	if *update {
		if err := os.WriteFile("testdata/codes.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/codes.txt")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Error(d)
	}
	if lines := strings.Split(strings.TrimSpace(b.String()), "\n"); !slices.IsSorted(lines) {
		t.Error("the checks are not sorted by code")
	}
}

// systemsByCode returns the systems of each check.
func systemsByCode() map[string][]string {
	systems := map[string][]string{}
	for _, c := range Checks() {
		systems[c.Code] = c.Systems
	}
	return systems
}

// TestTables compares the tables of Documentation/troubleshooting.md with the
// checks: every check must have a row in the table for its systems, and every
// row must name only checks that run on the systems of its table.
func TestTables(t *testing.T) {
	text, err := os.ReadFile("../../Documentation/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string][]string{"On any node:": anySystem, "On Linux:": linux, "On Windows:": windows}
	checks, rows := systemsByCode(), map[string]bool{}
	var system []string // of the current table; nil outside of the tables
	found := 0
	for line := range strings.Lines(string(text)) {
		if systems, isHeading := tables[strings.TrimSpace(line)]; isHeading {
			system = systems
			found++
		} else if strings.HasPrefix(line, "#") {
			system = nil
		}
		cells := strings.Split(line, " | ")
		if system == nil || len(cells) < 3 || strings.HasPrefix(line, "| what you see") {
			continue
		}
		if len(cells) != 4 || !code.MatchString(cells[1]) {
			t.Errorf("row with a wrong number of cells, or without a code: %s", line)
		}
		for _, c := range code.FindAllString(cells[1], -1) {
			if slices.ContainsFunc(system, func(s string) bool { return !slices.Contains(checks[c], s) }) {
				t.Errorf("%s is not a check for %v: %s", c, system, line)
			}
			rows[c] = rows[c] || slices.Equal(checks[c], system)
		}
	}
	for c, systems := range checks {
		if !rows[c] {
			t.Errorf("%s has no row in the table for %v", c, systems)
		}
	}
	if found != len(tables) {
		t.Errorf("found %d of %d tables", found, len(tables))
	}
}

// TestMentions finds codes in documents and scripts that no check has, and in
// those for Windows, codes of checks that do not run there.
func TestMentions(t *testing.T) {
	checks, files := systemsByCode(), 0
	for _, pattern := range []string{"../../*.md", "../../Documentation/*", "../../dist/windows/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files++
			for line := range strings.Lines(string(text)) {
				forWindows := strings.Contains(path, "windows") && !strings.Contains(line, "Linux")
				for _, c := range code.FindAllString(line, -1) {
					if checks[c] == nil || forWindows && !slices.Contains(checks[c], "windows") {
						t.Errorf("%s names %s, which is a check for %v (none: there is no such check): %s", path, c, checks[c], line)
					}
				}
			}
		}
	}
	if files < 10 {
		t.Errorf("only %d files found: the paths are wrong", files)
	}
}
