package install

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"
)

// If another program deletes the file again and again, the pauses between the
// repairs grow, and two lines are logged.
func TestRepeatedRepairsArePaced(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	start, deleted := time.Now(), 0
	n.until("restored twice", func() bool {
		if os.Rename(n.ConfTo, n.ConfTo+".cilium_bak") == nil {
			deleted++
		}
		return deleted > 2 && time.Since(start) > 4*time.Second
	})
	n.until("logged that it goes on", func() bool { return len(n.log.with("WARN", "longest=")) > 0 })
	t.Logf("deleted %d times in %v", deleted, time.Since(start))
	// Repairs: at once, after 1, 2, 4 s …. The first deletion is of the installed file.
	if most := 2 + int(time.Since(start)/shortestPause); deleted > most {
		t.Errorf("%d repairs in %v", deleted-1, time.Since(start))
	}
	if len(n.log.with("INFO", "path="+n.ConfTo, "reason=missing", "beside="+n.ConfTo+".cilium_bak")) != 1 || len(n.log.with("WARN", "longest=")) != 1 {
		t.Errorf("want one line for the first repair and one for all others:\n%s", n.log)
	}
}

// Another program undoes every repair at once for two hours, and then stops.
func TestPacer(t *testing.T) {
	log := &records{}
	k := keeper{target: target{to: "file"}, log: slog.New(log)}
	begin := time.Now()
	now, repairs := begin, 0
	for ; now.Sub(begin) < 2*time.Hour; now = now.Add(10 * time.Millisecond) {
		if p := (plan{reason: "missing"}); k.pace.delay(now, p) == 0 {
			k.report(p, now)
			repairs++
		}
	}
	if repairs < 115 || repairs > 130 || len(log.with("INFO")) != 1 || len(log.with("WARN")) != 1 {
		t.Errorf("%d repairs in two hours, log:\n%s\n%s", repairs, log.with("INFO"), log.with("WARN"))
	}
	if left := k.endEpisode(now); left < quietFor-longestPause || left > quietFor {
		t.Errorf("the episode ends after %v", left)
	}
	now = now.Add(quietFor)
	if k.endEpisode(now) != 0 || len(log.with("INFO", fmt.Sprint("repairs=", repairs))) != 1 {
		t.Errorf("the end of the episode is not logged:\n%s", log.with("INFO"))
	}
	if k.pace.delay(now, plan{reason: "missing"}) != 0 {
		t.Error("the first repair of a new episode is delayed")
	}
}

// An unusable file may be half written: it is repaired once it has stayed the same
// for stableFor, also at the start, when plans are updates.
func TestHalfWrittenFileMustBeStable(t *testing.T) {
	for _, update := range []bool{false, true} {
		var p pacer
		now := time.Now()
		half := plan{reason: "unusable", awaitStable: true, update: update}
		for _, text := range []string{"", `{"na`, `{"name":"`} {
			half.found = []byte(text)
			for _, after := range []time.Duration{0, stableFor / 2, stableFor - 1} {
				if p.delay(now.Add(after), half) == 0 {
					t.Errorf("update %v: %q is repaired after %v", update, text, after)
				}
			}
			now = now.Add(stableFor - 1)
		}
		if p.delay(now.Add(stableFor), half) != 0 {
			t.Errorf("update %v: a stable unusable file is not repaired", update)
		}
	}
}
