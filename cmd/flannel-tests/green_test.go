package main

import (
	"strings"
	"testing"
)

func TestGreen(t *testing.T) {
	g, err := parseGreen("# comment\nkernel-6.12 a1\n\npackages  b2\n")
	if err != nil {
		t.Fatal(err)
	}
	next := g.passed("c3", []string{"6.1"})
	if g[ofPackages] != "b2" || next[ofPackages] != "c3" || next[ofKernel("6.1")] != "c3" || next[ofKernel("6.12")] != "a1" {
		t.Errorf("%v became %v", g, next)
	}
	if again, err := parseGreen(next.String()); err != nil || again.String() != next.String() {
		t.Errorf("%s is read as %v, %v", next, again, err)
	}
	for text, want := range map[string]string{"packages b2 c3": "packages b2 c3", "kernel-6.1 a1": ofPackages, "": ofPackages} {
		if _, err := parseGreen(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error that names %q", text, err, want)
		}
	}
}

// The file of this repository has rows of known names, with commits.
func TestGreenFile(t *testing.T) {
	t.Chdir("../..")
	g, err := readGreen()
	if err != nil {
		t.Fatal(err)
	}
	for name, commit := range g {
		if name != ofPackages && !strings.HasPrefix(name, ofKernel("")) {
			t.Errorf("%s has a row %q", greenFile, name)
		}
		if strings.Trim(commit, "0123456789abcdef") != "" || len(commit) < 7 {
			t.Errorf("the row %s of %s has no commit: %q", name, greenFile, commit)
		}
	}
}
