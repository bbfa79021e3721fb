package firewall

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/pkg/nstest"
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
			done := make(chan error)
			go func() {
				for i := range 50 {
					c := both(s.writer)
					c.RandomFully = i%2 == 0 // so that each restart writes
					f := open(t, 0)
					_, err := f.Apply(context.Background(), c)
					f.Close()
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			plain := func(rules string) string {
				return withoutRepeated(strings.NewReplacer(" --random-fully", "", " fully-random", "").Replace(rules))
			}
			samples := 0
			for {
				if got := s.show(t); plain(got) != plain(want) {
					t.Fatalf("%s: sample %d shows other rules:\n%s", s.name, samples, cmp.Diff(want, got))
				}
				samples++
				select {
				case err := <-done:
					if err != nil {
						t.Error(fmt.Errorf("%s: %w", s.name, err))
					}
					t.Logf("%s: %d samples during 50 restarts", s.name, samples)
				default:
					continue
				}
				break
			}
		}
	})
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
