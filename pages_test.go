package flannel_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"go/ast"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```")
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link      = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)
	testName  = regexp.MustCompile(`\b(Test[A-Z]\w*)(…?)`)
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

var startsService = regexp.MustCompile(`(?m)^systemctl .*(?:start|--now)\b.* flanneld$`)

// systemctl waits for the service as long as flanneld waits for the network, and does not say why: the commands of pages
// leave the waiting to flanneld wait.
func TestPagesDoNotWaitInSystemctl(t *testing.T) {
	pages, err := filepath.Glob("Documentation/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range pages {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range startsService.FindAllString(string(raw), -1) {
			if strings.Contains(line, " disable ") {
				continue
			}
			found++
			if !strings.Contains(line, " --no-block ") {
				t.Errorf("%s: %s: add --no-block", path, line)
			}
		}
	}
	if found == 0 {
		t.Error("no page starts the service")
	}
}

var picture = regexp.MustCompile(`!\[([^\]]*)\]\(([^)]+\.svg)\)`)

// The pictures of README.md are small and well-formed, have a text for those who do not see them, show no path of the
// machine that made them, and load nothing.
func TestPictures(t *testing.T) {
	readme, _ := page(t, "README.md")
	found := picture.FindAllStringSubmatch(readme, -1)
	if len(found) == 0 {
		t.Fatal("README.md has no picture")
	}
	for _, m := range found {
		raw, err := os.ReadFile(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if m[1] == "" {
			t.Errorf("%s has no alternative text", m[2])
		}
		if len(raw) > 60_000 {
			t.Errorf("%s has %d bytes", m[2], len(raw))
		}
		for d := xml.NewDecoder(bytes.NewReader(raw)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", m[2], err)
			}
		}
		raw = bytes.ReplaceAll(raw, []byte("/coreos.com/network"), []byte("key")) // of etcd
		if path := regexp.MustCompile(`[>=" ]/\w[^<]*`).Find(raw); path != nil {
			t.Errorf("%s shows a path: %s", m[2], path)
		}
		if active := regexp.MustCompile(`(href|src)="[^#][^"]*"|url\([^)]*\)|<script`).Find(raw); active != nil {
			t.Errorf("%s loads %s", m[2], active)
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

// The tests that pages name exist: a name, or the beginning of one before "…".
func TestPagesNameTests(t *testing.T) {
	var names []string
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				names = append(names, f.Name.Name)
			}
		}
	}
	pages, err := filepath.Glob("Documentation/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var found int
	for _, path := range pages {
		text, _ := page(t, path)
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			found++
			if !slices.ContainsFunc(names, func(name string) bool { return name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1]) }) {
				t.Errorf("%s names %s, which does not exist", path, m[0])
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d names found", found)
	}
}

// Each row of security.md that claims something names a test, or says that
// there is none.
func TestSecurityClaimsAreShown(t *testing.T) {
	text, _ := page(t, "Documentation/security.md")
	_, text, _ = strings.Cut(text, "\n## ") // after the table of attackers
	var rows int
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| attack |") || strings.HasPrefix(line, "| secret |") {
			continue
		}
		rows++
		if !testName.MatchString(line) && !strings.Contains(line, "not tested") {
			t.Errorf("no test for: %s", line)
		}
	}
	if rows < 10 {
		t.Errorf("only %d rows found", rows)
	}
}

// Each block of commands for an installation or an upgrade has a comment before it: <!-- run: name -->, and the test that
// runs it names it, or <!-- not run: reason -->.
func TestCommandsAreRun(t *testing.T) {
	var runners string
	for _, path := range []string{"dist/commands_test.go", "cmd/flannel-release/lifecycle.sh", "cmd/flannel-release/machines.sh",
		"cmd/flannel-lab/cluster/user_test.go", "cmd/flannel-lab/cluster/install_test.go", "cmd/flannel-lab/cluster/upgrade_test.go"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		runners += string(text)
	}
	mark := regexp.MustCompile(`^<!-- (run|not run): (.+) -->$`)
	for _, path := range []string{"Documentation/install.md", "Documentation/upgrade.md"} {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before, inside := "", false
		for line := range strings.Lines(string(raw)) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				if inside = !inside; inside {
					m := mark.FindStringSubmatch(before)
					if m == nil {
						t.Errorf("%s: no comment says whether this block is run, but %q", path, before)
					} else if m[1] == "run" && (line != "```sh" || !strings.Contains(runners, `"`+m[2]+`"`)) {
						t.Errorf("%s: no test runs %s", path, m[2])
					}
				}
			}
			before = line
		}
	}
}
