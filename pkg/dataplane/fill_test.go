package dataplane

import (
	"fmt"
	"testing"
)

// The same failures have the same text: the daemon logs a problem again when its text changes.
func TestFillChangesErrorIsStable(t *testing.T) {
	var paths []*Path
	for i := range 8 {
		paths = append(paths, &Path{Device: fmt.Sprint("device", i)})
	}
	fail := func(_ *Filling, p *Path) error { return fmt.Errorf("%s is missing", p.Device) }
	first := FillChanges(nil, State{Paths: paths}, fail)
	for range 20 {
		if err := FillChanges(nil, State{Paths: paths}, fail); err.Error() != first.Error() {
			t.Fatalf("%v, then %v", first, err)
		}
	}
}
