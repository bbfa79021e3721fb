package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// ourPackages must be called in the folder at the top.
var ourPackages = sync.OnceValues(readPackages)

// The rows of this repository name what is there, and miss nothing.
func TestRowsAreComplete(t *testing.T) {
	t.Chdir("../..")
	text, err := os.ReadFile(".ci/paths")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parseRows(string(text))
	if err != nil {
		t.Fatal(err)
	}
	h, err := ourPackages()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.packages) < 50 || len(h.endToEnd) < 50 {
		t.Fatalf("%d packages and %d files of end-to-end tests: the test looks in the wrong place", len(h.packages), len(h.endToEnd))
	}
	for _, top := range []string{"backend", "cmd", "dist", "pkg", "subnet"} { // walked, so that Go's cache of results knows of them
		err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if _, ok := rowOf(rows, filepath.ToSlash(path)); !ok && strings.HasSuffix(path, ".go") {
				t.Errorf("%s has no row in .ci/paths", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range h.endToEnd {
		if len(f.tests) > 0 && !slices.ContainsFunc(rows, func(r row) bool { return r.matches(f.name) }) {
			t.Errorf("no row of .ci/paths names the end-to-end tests of %s: %s", f.name, strings.Join(f.tests, ", "))
		}
	}
	for _, r := range rows {
		if _, err := os.Stat(r.path); err != nil {
			t.Errorf("a row of .ci/paths: %v", err)
		}
		for _, name := range r.importers {
			if p := h.packages["./"+name]; p == nil || !p.uses["./"+r.path] {
				t.Errorf("the row of %s names %s, which is no package that imports it", r.path, name)
			}
		}
		for _, pattern := range r.files {
			named := row{files: []string{pattern}}
			if !slices.ContainsFunc(h.endToEnd, func(f testFile) bool { return len(f.tests) > 0 && named.matches(f.name) }) {
				t.Errorf("the row of %s names no file with tests by %q", r.path, pattern)
			}
		}
	}
}

// A machine that has no Kubernetes yet builds it before the tests that start it.
func TestPackagesThatNeedKubernetes(t *testing.T) {
	t.Chdir("../..")
	h, err := ourPackages()
	if err != nil {
		t.Fatal(err)
	}
	p := makePlan("test", change{}, change{}, nil, h)
	for _, name := range []string{"./cmd/flanneld", "./dist", kubetest, "./subnet/kube"} {
		if !slices.Contains(p.kube, name) {
			t.Errorf("%s is not among those that wait for Kubernetes: %s", name, strings.Join(p.kube, " "))
		}
	}
	if len(p.kube) > len(h.packages)/4 {
		t.Errorf("%d of %d packages wait for Kubernetes", len(p.kube), len(h.packages))
	}
}

func TestParseRows(t *testing.T) {
	for text, want := range map[string]string{
		"pkg/file wine\npkg/file": "pkg/file",
		"pkg/file kernel":         `"kernel"`,
	} {
		if rows, err := parseRows(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want an error that names %s", text, rows, err, want)
		}
	}
}

func TestRowOfTheLongestPath(t *testing.T) {
	rows := []row{{path: "pkg/dataplane"}, {path: "pkg/dataplane/hns"}, {path: "pkg/data"}}
	for name, want := range map[string]string{
		"pkg/dataplane/linux/vxlan.go": "pkg/dataplane", "pkg/dataplane/hns/a.go": "pkg/dataplane/hns", "pkg/data": "pkg/data", "pkg/datum/a.go": "",
	} {
		if r, _ := rowOf(rows, name); r.path != want {
			t.Errorf("%s: the row of %q, want that of %q", name, r.path, want)
		}
	}
}
