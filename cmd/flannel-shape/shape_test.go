package main

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/surface.txt")

// limits are the most that the program may have of what a reader has to keep in mind. Lower a limit with the change that
// allows it; a change that needs a higher one says why in its commit.
var limits = map[string]int{
	"packages of the product":          42,
	"imports among them":               150,
	"longest path of imports":          7,
	"folders in pkg":                   16,
	"interfaces asked for at run time": 0,
	"declarations named for a backoff": 1,
	"places that start a timer":        21,
	"lines of fields: daemon's node":   12,
	"lines of fields: linux.Driver":    11,
	"lines of fields: etcd.Manager":    9,
	"exported names":                   1127,
}

func product(t *testing.T) []source {
	t.Helper()
	all, err := readSources("../..")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestShape(t *testing.T) {
	limited := 0
	for _, m := range measure(product(t)) {
		limit, ok := limits[m.what]
		if m.count > limit && ok {
			t.Errorf("%s: %d, and at most %d are allowed (see limits)", m.what, m.count, limit)
		}
		if m.count == 0 && (!ok || limit > 0) { // with a limit of 0, TestMeasure shows that it is counted
			t.Errorf("%s: none: what is counted was renamed or has moved", m.what)
		}
		if ok {
			limited++
		}
	}
	if limited != len(limits) {
		t.Errorf("%d of %d limits are of something that is measured", limited, len(limits))
	}
}

// What users and other programs may depend on changes on purpose only, with a line in CHANGELOG.md.
func TestSurface(t *testing.T) {
	got := surfaceOf(product(t))
	if *update {
		if err := os.WriteFile("testdata/surface.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/surface.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("if on purpose: go test ./cmd/flannel-shape -update\n%s", diff)
	}
}

func TestMeasure(t *testing.T) {
	all, err := readSources("testdata/small")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, m := range measure(all) {
		got[m.what] = m.count
	}
	want := map[string]int{
		"lines of the product": 48, "lines of lab, simulation, tools and release": 3, "packages of the product": 3,
		"imports among them": 3, "longest path of imports": 3, "folders in pkg": 3, "interfaces asked for at run time": 2,
		"declarations named for a backoff": 1, "places that start a timer": 1, "lines of fields: daemon's node": 2,
		"lines of fields: linux.Driver": 0, "lines of fields: etcd.Manager": 0, "exported names": 5,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
