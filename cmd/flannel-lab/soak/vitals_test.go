package soak

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// vitals are what must not grow.
type vitals struct{ rss, goroutines, files float64 }

// look reads them while nothing is left to do. Memory is what is resident: what the collector has freed is given back
// within minutes, so the least of many samples counts.
func look(ctx context.Context, n *lab.Node) (v vitals, err error) {
	code, body, err := n.Ask(ctx, "/metrics")
	if err != nil || code != 200 {
		return v, fmt.Errorf("/metrics: %d %w", code, err)
	}
	found := 0
	for line := range strings.Lines(body) {
		for name, to := range map[string]*float64{"process_resident_memory_bytes": &v.rss, "go_goroutines": &v.goroutines, "process_open_fds": &v.files} {
			if got, _ := fmt.Sscanf(line, name+" %g", to); got == 1 {
				found++
			}
		}
	}
	if found != 3 {
		return v, fmt.Errorf("/metrics has %d of three values", found)
	}
	return v, nil
}

// flat compares the second half of the samples with the first, after the first fifth, in which caches fill. Of goroutines
// and files the middle counts: there are fewer for a moment while a connection is made anew, and more while one is closed.
func flat(t *testing.T, all []vitals) {
	t.Helper()
	all = all[len(all)/5:]
	if len(all) < 4 {
		t.Logf("%d samples are too few to compare", len(all))
		return
	}
	early, late := all[:len(all)/2], all[len(all)/2:]
	for _, c := range []struct {
		name        string
		of          func(vitals) float64
		unit        float64
		room, times float64 // how much more, and how many times as much, is no growth
		quarter     int     // which sample counts, of those in order: that after so many quarters of them
	}{
		{"resident memory, MB", func(v vitals) float64 { return v.rss }, 1 << 20, 6 << 20, 1.15, 0},
		{"goroutines", func(v vitals) float64 { return v.goroutines }, 1, 3, 1, 2},
		{"open files", func(v vitals) float64 { return v.files }, 1, 3, 1, 2},
	} {
		typical := func(half []vitals) float64 {
			half = slices.SortedFunc(slices.Values(half), func(a, b vitals) int { return cmp.Compare(c.of(a), c.of(b)) })
			return c.of(half[len(half)*c.quarter/4])
		}
		before, after := typical(early), typical(late)
		t.Logf("%s: %.1f in the first half, %.1f in the second", c.name, before/c.unit, after/c.unit)
		if after > before*c.times+c.room {
			t.Errorf("%s grew from %.1f to %.1f", c.name, before/c.unit, after/c.unit)
		}
	}
}
