package flannel_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```")
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link      = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// page returns the text of a page without its code blocks, and the anchors of its headings as GitHub forms them.
func page(t *testing.T, path string) (text string, anchors map[string]bool) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, anchors = codeBlock.ReplaceAllString(string(raw), ""), map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		anchors[strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return text, anchors
}

// Links between pages lead to files and headings that exist.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "Documentation/*.md", "Documentation/adr/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	for _, path := range pages {
		text, _ := page(t, path)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := path
			if strings.Contains(m[1], "://") {
				continue
			} else if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			} else if m[2] != "" {
				if _, anchors := page(t, target); !anchors[m[2]] {
					t.Errorf("%s links to %s#%s, which is not a heading", path, m[1], m[2])
				}
			}
		}
	}
}

// The table of packages in architecture.md lists every package.
func TestArchitectureListsPackages(t *testing.T) {
	text, _ := page(t, "Documentation/architecture.md")
	_, text, _ = strings.Cut(text, "\n## Packages\n")
	text, _, _ = strings.Cut(text, "\n#")
	for _, s := range sources(t) {
		if !s.test && !within(s.dir, "cmd/flannel-lab") && !strings.Contains(text, "`"+s.dir+"`") {
			t.Errorf("the table of packages in architecture.md lacks %s", s.dir)
		}
	}
}
