package windows

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/windows/hns"
)

// haunt brings the network up and makes it a ghost.
func (w *windows) haunt() {
	w.t.Helper()
	w.bring(time.Minute)
	w.mends(time.Minute)
	if err := w.m.Admin().Ghost(w.devices[0].Name); err != nil {
		w.t.Fatal(err)
	}
	w.restart()
	w.m.ForgetLog()
}

// deletes returns how often the older API was asked to delete a network.
func (w *windows) deletes() (n int) {
	for _, c := range w.m.Log() {
		if strings.HasPrefix(c.Text, "HNSCall DELETE /networks/") {
			n++
		}
	}
	return n
}

// The older API alone lists our network: it is deleted there and made again, at the second refusal.
func TestGhostNetwork(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 10 * time.Second, GhostNetwork: true}, func(w *windows) {
				w.haunt()
				w.bring(3 * time.Minute)
				w.mends(time.Minute)
				w.check(inStep[kind])
				if n := w.calls("HcnCreateNetwork"); n != 3 || w.deletes() != 1 || w.log.Count("cause="+causeGhost) != 1 {
					t.Errorf("%d networks were asked for, %d deleted:\n%s", n, w.deletes(), w.log)
				}
			})
		})
	}
}

// No list has the network, or HNS does not delete it, or it is not ours: HNS is asked seldom, and the error says what to do.
// A restart of HNS ends it.
func TestGhostNetworkStays(t *testing.T) {
	for name, test := range map[string]struct {
		knobs     hnstest.Knobs
		prepare   func(*windows)
		names     []string // in the error
		deletions bool
	}{
		"in no list": {prepare: (*windows).haunt, names: []string{"flannel.4096", "Restart-Service hns -Force", "0x803b0010"}},
		"not deleted": {knobs: hnstest.Knobs{GhostNetwork: true}, deletions: true, names: []string{"flannel.4096", "Restart-Service hns -Force", "0x803b0010"}, prepare: func(w *windows) {
			w.haunt()
			w.m.Fail(hnstest.Fault{Func: "HNSCall", Match: "DELETE", Code: hns.InvalidParameter})
		}},
		"of another": {knobs: hnstest.Knobs{GhostNetwork: true}, names: []string{"flannel.4096", "Transparent", "Remove-HnsNetwork", "0x803b0010"}, prepare: func(w *windows) {
			if err := w.m.Admin().CreateNetwork(`{"Name":"flannel.4096","Type":"Transparent","Flags":8,"SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
				w.t.Fatal(err)
			}
			if err := w.m.Admin().Ghost("flannel.4096"); err != nil {
				w.t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onWindows(t, overlayDevice(ownSubnet), test.knobs, func(w *windows) {
				test.prepare(w)
				warned := w.log.Count("level=WARN")
				w.hour()
				n, deletes := w.calls("HcnCreateNetwork"), w.deletes()
				if n < 5 || n > triesAnHour || deletes > triesAnHour || test.deletions != (deletes > 0) || w.log.Count("level=WARN") != warned {
					t.Errorf("%d networks were asked for in an hour, %d deleted:\n%s", n, deletes, w.log)
				}
				if err := w.pass(); err == nil || !logtest.Names(err.Error(), test.names...) {
					t.Errorf("got %v", err)
				}
				w.m.Turn(func(k *hnstest.Knobs) { k.Down = true })
				w.passes(5 * time.Second)
				w.m.Restart()
				w.m.Turn(func(k *hnstest.Knobs) { k.Down = false })
				w.bring(time.Minute)
				w.mends(time.Minute)
			})
		})
	}
}

// HNS lists the network a moment after it has refused to create it: nothing is deleted.
func TestListedLate(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{GhostNetwork: true}, func(w *windows) {
		w.haunt()
		before := w.m.Admin().Networks()[0]
		w.passes(3 * time.Second)
		if err := w.m.Admin().Unghost("flannel.4096"); err != nil {
			t.Fatal(err)
		}
		w.bring(time.Minute)
		w.mends(time.Minute)
		if now := w.m.Admin().Networks()[0]; w.calls("HcnCreateNetwork") != 1 || w.deletes() != 0 || networkID(t, before) != networkID(t, now) {
			t.Errorf("%s became %s", before, now)
		}
	})
}

func networkID(t *testing.T, document []byte) string {
	t.Helper()
	n, err := hns.DecodeNetwork(document)
	if err != nil {
		t.Fatal(err)
	}
	return n.ID
}

// Of networks named External, prepare deletes a ghost that an earlier run made, and no other.
func TestGhostOfPrepare(t *testing.T) {
	for _, ours := range []bool{true, false} {
		t.Run(fmt.Sprintf("ours %t", ours), func(t *testing.T) {
			onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{GhostNetwork: true}, func(w *windows) {
				if ours {
					if _, _, err := w.prepared(time.Minute); err != nil {
						t.Fatal(err)
					}
				} else if err := w.m.Admin().CreateNetwork(`{"Name":"External","Type":"L2Bridge","SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
					t.Fatal(err)
				}
				if err := w.m.Admin().Ghost("External"); err != nil {
					t.Fatal(err)
				}
				p, _, err := w.prepared(3 * time.Minute)
				if ours && (err != nil || !p.Made || w.deletes() != 1) {
					t.Errorf("%+v, %v, %d deleted", p, err, w.deletes())
				}
				if !ours && (err == nil || !logtest.Names(err.Error(), "External", "Remove-HnsNetwork") || w.deletes() != 0) {
					t.Errorf("%+v, %v, %d deleted", p, err, w.deletes())
				}
			})
		})
	}
}

// A network that is created or deleted while the lists are read is no ghost.
func TestGhosts(t *testing.T) {
	m := hnstest.NewFor(t)
	c := hns.NewClient(m, hns.Timing{})
	m.Turn(func(k *hnstest.Knobs) { k.GhostNetwork = true })
	for _, name := range []string{"one", "two"} {
		if err := m.Admin().CreateNetwork(`{"Name":"` + name + `","Type":"L2Bridge","SchemaVersion":{"Major":2,"Minor":0}}`); err != nil {
			t.Fatal(err)
		}
	}
	if ghosts, err := c.Ghosts(context.Background()); err != nil || len(ghosts) != 0 {
		t.Errorf("got %v, %v", ghosts, err)
	}
	if err := m.Admin().Ghost("two"); err != nil {
		t.Fatal(err)
	}
	ghosts, err := c.Ghosts(context.Background())
	if err != nil || len(ghosts) != 1 || ghosts[0].Name != "two" || ghosts[0].Type != hns.L2Bridge {
		t.Fatalf("got %+v, %v", ghosts, err)
	}
	if err := c.DeleteGhost(context.Background(), ghosts[0].ID); err != nil {
		t.Fatal(err)
	}
	if got := m.Admin().Networks(); len(got) != 1 {
		t.Errorf("%s remain", got)
	}
}
