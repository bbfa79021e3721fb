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

// usage is the resource usage of a daemon, which must not grow.
type usage struct{ heap, goroutines, files float64 }

// readUsage reads the usage of a daemon that is idle. Memory is Go's heap with its
// garbage, so checkGrowth uses the minimum of many samples. The resident set says less:
// the daemon releases pages of its program, and they come back.
func readUsage(ctx context.Context, n *lab.Node) (v usage, err error) {
	code, body, err := n.Ask(ctx, "/metrics")
	if err != nil || code != 200 {
		return v, fmt.Errorf("/metrics: %d %w", code, err)
	}
	found := 0
	for line := range strings.Lines(body) {
		for name, to := range map[string]*float64{"go_memstats_heap_alloc_bytes": &v.heap,
			"go_goroutines": &v.goroutines, "process_open_fds": &v.files} {
			if got, _ := fmt.Sscanf(line, name+" %g", to); got == 1 {
				found++
			}
		}
	}
	if found != 3 {
		return v, fmt.Errorf("/metrics has %d of 3 values", found)
	}
	return v, nil
}

// checkGrowth compares the second half of the samples with the first, without
// the first fifth, in which caches fill. For goroutines and files it uses the
// median: for a moment there are fewer while a connection is made again, and
// more while one is closed.
func checkGrowth(t *testing.T, all []usage) {
	t.Helper()
	all = all[len(all)/5:]
	if len(all) < 4 {
		t.Logf("only %d samples, too few to compare", len(all))
		return
	}
	early, late := all[:len(all)/2], all[len(all)/2:]
	for _, c := range []struct {
		name        string
		of          func(usage) float64
		unit        float64
		room, times float64 // allowed growth: before*times + room
		quarter     int     // quantile of the samples that is compared, in quarters; 0: minimum, 2: median
	}{
		{"heap, MB", func(v usage) float64 { return v.heap }, 1 << 20, 6 << 20, 1.15, 0},
		{"goroutines", func(v usage) float64 { return v.goroutines }, 1, 3, 1, 2},
		{"open files", func(v usage) float64 { return v.files }, 1, 3, 1, 2},
	} {
		typical := func(half []usage) float64 {
			half = slices.SortedFunc(slices.Values(half), func(a, b usage) int { return cmp.Compare(c.of(a), c.of(b)) })
			return c.of(half[len(half)*c.quarter/4])
		}
		before, after := typical(early), typical(late)
		t.Logf("%s: %.1f in the first half, %.1f in the second", c.name, before/c.unit, after/c.unit)
		if after > before*c.times+c.room {
			t.Errorf("%s grew from %.1f to %.1f", c.name, before/c.unit, after/c.unit)
		}
	}
}
