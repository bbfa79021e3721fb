package linux

import (
	"testing"
	"time"

	"flannel/pkg/dataplane"
)

// A session lasts for its time since this run saw its handshake, whatever the wall clock is set to meanwhile.
func TestConnectedWhenClockIsSet(t *testing.T) {
	now := time.Now()
	for what, c := range map[string]struct {
		handshake, seen time.Time
		connected       int
	}{
		"set forward": {now.Add(-time.Hour), now.Add(-time.Minute), 1},
		"set back":    {now.Add(time.Hour), now.Add(-time.Hour), 0},
		"none":        {time.Time{}, now, 0},
	} {
		var sum dataplane.TunnelSummary
		s := newWGStore(nil, "", func(t dataplane.TunnelSummary) { sum = t })
		s.devices = func() map[int]string { return nil }
		s.summarize(map[wgKey]*wgState{{}: {handshake: c.handshake, changed: c.seen}})
		if sum.Peers != 1 || sum.Connected != c.connected {
			t.Errorf("%s: %+v", what, sum)
		}
	}
}
