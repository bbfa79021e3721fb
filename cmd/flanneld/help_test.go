package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestHelp(t *testing.T) {
	var b bytes.Buffer
	if err := printHelp(&b); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/help.txt", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/help.txt")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("--help changed; if that is right, run go test ./cmd/flanneld -update\n%s", d)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth || strings.HasSuffix(line, " \n") {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	if err := printHelp(brokenWriter{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed output: %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }
