package dataplane

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// Of repairs that another program undoes at once, the first ten are logged, and then one in a minute. What else is
// repaired has a limit of its own.
func TestManyRepairsAreNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRepairs(slog.New(slog.DiscardHandler), func(string, int) {})
		logged := map[string]int{}
		for range 3000 { // five minutes
			for _, what := range []string{"devices", "guard-rules"} {
				if r.Count(what, 1) {
					logged[what]++
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if logged["devices"] != 14 || logged["guard-rules"] != 14 { // ten at once, and one in each minute but the first
			t.Errorf("logged %v", logged)
		}
		if none := (*Repairs)(nil); !none.Count("devices", 1) {
			t.Error("without Repairs, nothing is logged")
		}
	})
}
