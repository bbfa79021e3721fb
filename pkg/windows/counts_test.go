package windows

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
)

// Cost follows changes: the first sync asks once and changes in batches, a restart changes nothing, and one peer is one
// change.
func TestCounts(t *testing.T) {
	for _, n := range []int{250, 2000} {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s %d", kind, n), func(t *testing.T) {
				dev := devicesOf(kind)
				onWindows(t, dev, hnstest.Knobs{}, func(w *windows) {
					w.opts.Pace = pace{Poll: time.Hour, Wait: time.Hour}
					w.state.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
					w.state.Paths = nil
					w.restart()
					for w.pass() != nil {
						synctest.Wait()
					}
					for i := range n {
						p := winPath(dev, i%250+3)
						p.Dst = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
						if kind == overlayKind {
							end, _ := p.End()
							end.MAC[3] = byte(i >> 8)
							p.Encap = dataplane.VTEP{MAC: end.MAC}
						}
						w.state.Paths = append(w.state.Paths, p)
					}
					batches := (n + batchSize - 1) / batchSize
					if kind == bridgeKind {
						batches = n // routes go one by one
					}
					w.counts("first sync", 1, batches)
					if w.done.Set != n {
						t.Errorf("%d entries were set", w.done.Set)
					}
					w.settle()
					w.counts("nothing to do", 0, 0)
					w.restart()
					w.counts("restart", map[netKind]int{overlayKind: 3, bridgeKind: 8}[kind], 0) // notifications, version, networks; management address, endpoints and one of them, both again for addresses
					w.settle()
					w.state.Paths = append(slices.Clone(w.state.Paths), &dataplane.Path{Dst: netip.MustParsePrefix("10.200.0.0/24"), Via: netip.MustParseAddr("10.99.0.3"), Device: dev.Name, Encap: w.state.Paths[0].Encap})
					w.counts("one more", 0, 1)
					w.settle()
					w.state.Paths = w.state.Paths[:n]
					w.counts("one less", 1, 1)
				})
			})
		}
	}
}

// settle waits until the notifications of the last change have arrived.
func (w *windows) settle() {
	for range 2 {
		time.Sleep(w.pace.Rest + time.Second) // and the host's addresses are believed to be there
		synctest.Wait()
		if err := w.pass(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// counts passes once and compares the calls of HNS: those that ask and those that change, host routes included.
func (w *windows) counts(what string, queries, changes int) {
	w.t.Helper()
	synctest.Wait()
	w.m.ForgetLog()
	before, changesBefore := w.client.Counts()
	if err := w.pass(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	after, changesAfter := w.client.Counts()
	if asked := int(after - before - (changesAfter - changesBefore)); asked > queries {
		w.t.Errorf("%s: HNS was asked %d times, want at most %d", what, asked, queries)
	}
	if got := len(w.m.Changes()); got != changes {
		w.t.Errorf("%s: %d changes, want %d", what, got, changes)
	}
}
