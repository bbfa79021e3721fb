package firewall

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/nstest"
	"flannel/pkg/firewall"
)

func TestRestartWritesNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, s := range []seen{seenNFT, seenTables, seenLegacy} {
			sh(t, s.setup)
			f := open(t, 0)
			if n := apply(t, f, both(s.writer)); n == 0 {
				t.Errorf("%s: nothing written at first", s.name)
			}
			f.Close()
			sh(t, "ping -c 1 -W 1 127.0.0.1")
			state := func() string {
				// With handles and packet counts: a rule that is written again would show.
				return stamp.ReplaceAllString(sh(t, "iptables-legacy-save -c; ip6tables-legacy-save -c; nft -a list ruleset 2>/dev/null"), "")
			}
			before := state()
			if !strings.Contains(before, "FLANNEL-POSTRTG") && !strings.Contains(before, "flannel-ipv4") {
				t.Fatalf("no rules:\n%s", before)
			}
			f = open(t, 0)
			start := time.Now()
			if n := apply(t, f, both(s.writer)); n != 0 {
				t.Errorf("%s: a restart changed %d chains", s.name, n)
			}
			t.Logf("%s: first Apply of a restart took %v", s.name, time.Since(start).Round(100*time.Microsecond))
			f.Close()
			if diff := cmp.Diff(before, state()); diff != "" {
				t.Errorf("%s: a restart changed something:\n%s", s.name, diff)
			}
		}
	})
}

// Sampled as fast as it goes, no moment of any restart shows the rules incomplete.
func TestRestartsLeaveNoGap(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, s := range []seen{seenNFT, seenTables, seenLegacy} {
			sh(t, s.setup)
			f := open(t, 0)
			apply(t, f, both(s.writer))
			f.Close()
			want := s.show(t)
			var restarts atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- restart(ctx, s, &restarts) }()
			plain := func(rules string) string {
				return withoutRepeated(strings.NewReplacer(" --random-fully", "", " fully-random", "").Replace(rules))
			}
			for samples := 0; samples < 75 || restarts.Load() < 10; samples++ {
				if got := s.show(t); plain(got) != plain(want) {
					t.Fatalf("%s: sample %d shows other rules:\n%s", s.name, samples, cmp.Diff(want, got))
				}
				select {
				case err := <-done:
					t.Fatalf("%s: %v", s.name, err)
				default:
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
			t.Logf("%s: %d restarts", s.name, restarts.Load())
		}
	})
}

// restart starts the firewall again and again, and counts that, until ctx ends.
func restart(ctx context.Context, s seen, count *atomic.Int64) error {
	for i := 0; ctx.Err() == nil; i++ {
		c := both(s.writer)
		c.RandomFully = i%2 == 0 // so that each restart writes
		f, err := New(firewall.Options{Log: quiet})
		if err != nil {
			return err
		}
		_, err = f.Apply(context.Background(), c)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		count.Add(1)
	}
	return nil
}

// withoutRepeated removes the rules that are repeated later in the same chain.
// The kernel announces a change of the rules shortly before it makes it. A
// listing that begins in between is valid for nft, and can show the former rules
// of a chain followed by the new ones, though packets never meet both. It cannot
// lack any, because the new rules are behind the former ones.
func withoutRepeated(rules string) string {
	var kept []string
	chain := map[string]int{} // the places in kept of the rules of the current chain
	for line := range strings.Lines(rules) {
		switch i, repeated := chain[line]; {
		case strings.HasSuffix(line, "{\n"), strings.HasSuffix(line, "}\n"):
			clear(chain)
		case repeated:
			kept[i] = ""
			fallthrough
		default:
			chain[line] = len(kept)
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, "")
}
