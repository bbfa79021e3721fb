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

// TestTables compares the tables of the pages for troubleshooting that have a
// column for codes with the checks. On the page for Windows every row must name
// only checks that run there, and every check that runs nowhere else must have
// a row; on the other pages the same holds for Linux.
func TestTables(t *testing.T) {
	checks, rows, found := systemsByCode(), map[string]bool{}, map[string]int{}
	for _, page := range []struct{ name, system string }{
		{"troubleshooting.md", "linux"}, {"doctor.md", "linux"}, {"windows-troubleshooting.md", "windows"},
	} {
		for _, line := range codeRows(t, page.name) {
			cells := strings.Split(line, " | ")
			found[page.system]++
			if len(cells) != 4 {
				t.Errorf("%s: row with a wrong number of cells: %s", page.name, line)
				continue
			}
			for _, c := range code.FindAllString(cells[1], -1) {
				if !slices.Contains(checks[c], page.system) {
					t.Errorf("%s: %s is not a check for %s: %s", page.name, c, page.system, line)
				}
				rows[c] = rows[c] || checks[c][0] == page.system
			}
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

// codeRows returns the rows of a page's tables whose second column is "code".
func codeRows(t *testing.T, page string) (rows []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../Documentation", page))
	if err != nil {
		t.Fatal(err)
	}
	inTable := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		switch {
		case len(cells) > 1 && cells[1] == "code":
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			rows = append(rows, line)
		}
	}
	return rows
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

var sysctlsInUse = regexp.MustCompile(`inUse\(s, "([^"]+)", "([^"]+)"\)`)

// TestRequirements looks in the requirements of install.md for the kernel parameters that FL201 and FL202 check.
func TestRequirements(t *testing.T) {
	page, err := os.ReadFile("../../Documentation/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "**You need**")
	text, _, _ = strings.Cut(text, "```")
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	checks := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range sysctlsInUse.FindAllStringSubmatch(string(source), -1) {
			checks++
			for _, path := range call[1:] {
				if !strings.Contains(text, strings.ReplaceAll(path, "/", ".")+"=1") {
					t.Errorf("install.md does not require %s, which %s checks", path, file)
				}
			}
		}
	}
	if checks < 2 {
		t.Errorf("only %d checks found", checks)
	}
}
