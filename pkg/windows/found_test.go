package windows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

func pathsText(paths []*dataplane.Path) string {
	var lines []string
	for _, p := range paths {
		end, _ := p.End()
		lines = append(lines, fmt.Sprintf("%s at %s through %s to %s", p.Dst, p.Via, p.Device, end.MAC))
	}
	return strings.Join(lines, "\n")
}

// A new run finds what leads to the peers of the one before, in each of the three forms, and wanting it changes nothing.
func TestHNSFound(t *testing.T) {
	for _, form := range []struct {
		name  string
		dev   dataplane.Device
		knobs hnstest.Knobs
	}{
		{"policies", overlayDevice(ownSubnet), hnstest.Knobs{}},
		{"remote endpoints", overlayDevice(ownSubnet), hnstest.Knobs{Version: hns.Version{Major: 9, Minor: 1}}},
		{"routes", bridgeDevice(ownSubnet), hnstest.Knobs{}},
	} {
		t.Run(form.name, func(t *testing.T) {
			onWindows(t, form.dev, form.knobs, func(w *windows) {
				w.bring(time.Minute)
				want, before := w.state.Paths, w.holds()
				w.restart()
				w.state.Paths = nil
				links, err := w.Ensure(w.t.Context(), w.devices)
				if err != nil {
					w.t.Fatal(err)
				}
				found, err := w.Found(w.t.Context(), links, w.state)
				if err != nil || pathsText(found) != pathsText(want) {
					w.t.Errorf("it finds (%v)\n%s\nwant\n%s", err, pathsText(found), pathsText(want))
				}
				w.state.Paths = found
				w.bring(time.Minute)
				if now := w.holds(); now != before || w.done.Set+w.done.Deleted > 0 {
					w.t.Errorf("%+v done; it holds\n%s\nand held\n%s", w.done, now, before)
				}
				w.state.Paths = found[1:]
				w.bring(time.Minute)
				if w.done.Deleted != 1 {
					w.t.Errorf("%+v done without the first of the paths", w.done)
				}
			})
		})
	}
}
