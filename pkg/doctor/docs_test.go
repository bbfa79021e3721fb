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

// TestCodes holds each code to what it means, and codes to their order: people have them in notes and alerts. A line of
// the golden file may come, and its words may be mended, but never become another check's.
func TestCodes(t *testing.T) {
	var b strings.Builder
	for _, c := range Checks() {
		fmt.Fprintf(&b, "%s %s: %s\n", c.Code, strings.Join(c.Systems, ", "), c.Title)
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
		t.Error("codes are not in order")
	}
}

// systemsOf are the checks by their codes.
func systemsOf() map[string][]string {
	all := map[string][]string{}
	for _, c := range Checks() {
		all[c.Code] = c.Systems
	}
	return all
}

// TestTables holds the tables of Documentation/troubleshooting.md to the checks, both ways: every check has a row among
// those of its system, and every row names checks of its system.
func TestTables(t *testing.T) {
	text, err := os.ReadFile("../../Documentation/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string][]string{"On any node:": anySystem, "On Linux:": linux, "On Windows:": windows}
	checks, rows := systemsOf(), map[string]bool{}
	var system []string
	seen := 0
	for line := range strings.Lines(string(text)) {
		if systems, begins := tables[strings.TrimSpace(line)]; begins {
			system = systems
			seen++
		} else if strings.HasPrefix(line, "#") {
			system = nil
		}
		cells := strings.Split(line, " | ")
		if system == nil || len(cells) < 3 || strings.HasPrefix(line, "| what you see") {
			continue
		}
		if len(cells) != 4 || !code.MatchString(cells[1]) {
			t.Errorf("a row of another shape, or without a code: %s", line)
		}
		for _, c := range code.FindAllString(cells[1], -1) {
			if slices.ContainsFunc(system, func(s string) bool { return !slices.Contains(checks[c], s) }) {
				t.Errorf("%s is no check for %v: %s", c, system, line)
			}
			rows[c] = rows[c] || slices.Equal(checks[c], system)
		}
	}
	for c, systems := range checks {
		if !rows[c] {
			t.Errorf("%s has no row in the table for %v", c, systems)
		}
	}
	if seen != len(tables) {
		t.Errorf("%d of %d tables", seen, len(tables))
	}
}

// TestMentions finds codes that other documents and scripts name and that no check has, or none for their system.
func TestMentions(t *testing.T) {
	checks, files := systemsOf(), 0
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
				ofWindows := strings.Contains(path, "windows") && !strings.Contains(line, "Linux")
				for _, c := range code.FindAllString(line, -1) {
					if checks[c] == nil || ofWindows && !slices.Contains(checks[c], "windows") {
						t.Errorf("%s names %s, which is a check for %v: %s", path, c, checks[c], line)
					}
				}
			}
		}
	}
	if files < 10 {
		t.Errorf("only %d files found: the test looks in the wrong place", files)
	}
}
