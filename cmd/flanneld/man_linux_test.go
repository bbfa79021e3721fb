package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"

	"flannel/internal/test/logtest"
	"flannel/pkg/version"
)

var manDir = flag.String("man", "", "write the man pages into this directory")

// TestManPages makes a man page of the daemon and of each command. With -man it is what make man runs: so the packages
// that format the pages are linked into the tests and not into flanneld, and the pages are tested whenever flanneld is.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root := new(options).commandTree()
	root.DisableAutoGenTag = true
	root.Long += "\n\n" + aboutFlags + manExits(daemonExits)
	pages := []string{"flanneld"}
	for _, row := range commands() {
		cmd, _, err := root.Find([]string{row.name})
		if err != nil {
			t.Fatal(err)
		}
		cmd.Long += manExits(row.exits)
		if listed(cmd) {
			pages = append(pages, "flanneld-"+row.name)
		}
	}
	header := &doc.GenManHeader{Section: "8", Source: "flanneld " + version.Version, Manual: "flanneld"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(dir, page+".8"))
		if err != nil || !logtest.Names(string(text), ".SH NAME", ".SH EXIT STATUS", ".SH OPTIONS") {
			t.Errorf("%s: %v\n%s", page, err, text)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "flanneld-prepare.8")); err == nil {
		t.Error("there is a page for a command that Linux does not have")
	}
}

// manExits returns the exit codes as a section in Markdown, which cobra makes man pages from.
func manExits(own map[int]string) string {
	var b strings.Builder
	b.WriteString("\n\n# EXIT STATUS\n")
	for _, e := range exitTexts(own) {
		fmt.Fprintf(&b, "**%d**\n\t%s\n\n", e.code, e.text)
	}
	return strings.TrimRight(b.String(), "\n")
}
