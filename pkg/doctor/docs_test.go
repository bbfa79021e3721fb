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

// TestTables compares the tables of Documentation/troubleshooting.md that have
// a column for codes with the checks. Below the heading for Windows every row
// must name only checks that run there, and every check that runs nowhere else
// must have a row; in the other tables the same holds for Linux.
func TestTables(t *testing.T) {
	text, err := os.ReadFile("../../Documentation/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	checks, rows := systemsByCode(), map[string]bool{}
	heading, inTable, found := "", false, map[string]int{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		switch {
		case strings.HasPrefix(line, "## "):
			heading = strings.TrimSpace(line)
		case len(cells) > 1 && cells[1] == "code":
			inTable = true
			continue
		case !strings.HasPrefix(line, "|"):
			inTable = false
		}
		if !inTable || strings.HasPrefix(line, "|---") {
			continue
		}
		system := "linux"
		if heading == "## Windows nodes" {
			system = "windows"
		}
		found[system]++
		if len(cells) != 4 {
			t.Errorf("row with a wrong number of cells: %s", line)
			continue
		}
		for _, c := range code.FindAllString(cells[1], -1) {
			if !slices.Contains(checks[c], system) {
				t.Errorf("%s is not a check for %s: %s", c, system, line)
			}
			rows[c] = rows[c] || checks[c][0] == system
		}
	}
	for c, systems := range checks {
		if !rows[c] {
			t.Errorf("%s has no row in a table for %s", c, systems[0])
		}
	}
	if found["linux"] < 30 || found["windows"] < 20 {
		t.Errorf("found only %v rows: the test looks for another heading or column", found)
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
