package driver

import (
	"fmt"
	"testing"

	"flannel/pkg/dataplane"
)

// The same failures have the same text: the daemon logs a problem again when its text changes.
func TestFillChangesErrorIsStable(t *testing.T) {
	var paths []*dataplane.Path
	for i := range 8 {
		paths = append(paths, &dataplane.Path{Device: fmt.Sprint("device", i)})
	}
	fail := func(_ *Filling, p *dataplane.Path) error { return fmt.Errorf("%s is missing", p.Device) }
	first := FillChanges(nil, dataplane.State{Paths: paths}, fail)
	for range 20 {
		if err := FillChanges(nil, dataplane.State{Paths: paths}, fail); err.Error() != first.Error() {
			t.Fatalf("%v, then %v", first, err)
		}
	}
}
