package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/changes"
	"flannel/pkg/dataplane"
)

// idle is a Dataplane without entries.
type idle struct{ dataplane.Dataplane }

func (idle) Apply(context.Context, dataplane.Links, dataplane.State) ([]dataplane.Refused, error) {
	return nil, nil
}

// Memory is returned once the daemon has settled: after the start, and after many changes,
// however few are in each pass.
func TestReturnsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released, returned := 0, 0
		d := &leanDataplane{Dataplane: idle{}, release: func() { released++ }, returnAll: func() { returned++ }}
		for i, step := range []struct{ passes, changes, want int }{
			{1, 3, 1}, {9, manyChanges / 10, 1}, {1, manyChanges / 10, 2}, {1, manyChanges, 3}, {5, 0, 3},
		} {
			for range step.passes {
				if _, err := d.Apply(t.Context(), nil, dataplane.State{Changes: make([]changes.Change[dataplane.Path], step.changes)}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(untilSettled)
			synctest.Wait()
			if returned != step.want || released != 1 {
				t.Errorf("step %d: returned %d times, want %d; released %d times, want once", i, returned, step.want, released)
			}
		}
	})
}
