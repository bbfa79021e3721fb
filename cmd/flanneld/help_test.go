package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestHelp(t *testing.T) {
	var b bytes.Buffer
	root := new(options).commandTree()
	if err := printHelp(&b, root, commands(), 0); err != nil {
		t.Fatal(err)
	}
	golden := "testdata/help.txt"
	if runtime.GOOS == "windows" {
		golden = "testdata/help_windows.txt" // with its paths
	}
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("--help changed; if that is right, run go test ./cmd/flanneld -update\n%s", d)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > defaultWidth || strings.HasSuffix(line, " \n") {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	for _, columns := range []int{1, 60, 80, 400} {
		b.Reset()
		if err := printHelp(&b, root, commands(), columns); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " \n")); n > helpWidth(columns) && n > len("      --subnet-lease-renew-margin MINUTES") && len(strings.Fields(line)) > 4 {
				t.Errorf("%d characters in %d columns: %q", n, columns, line)
			}
		}
	}
	if err := printHelp(brokenWriter{}, root, commands(), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed output: %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }
