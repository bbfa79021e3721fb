package hostconfig

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/pkg/reconcile"
)

// refusable returns the path of a journal, and a function that says whether it can be read. Whether or not, it can be
// replaced. Root can read every file, so that a link to itself takes the place of one that cannot be read.
func refusable(t *testing.T) (path string, allow func(bool)) {
	t.Helper()
	dir := t.TempDir()
	path, aside := filepath.Join(dir, "hns.json"), filepath.Join(dir, "aside")
	allow = func(readable bool) {
		t.Helper()
		from, to := path, aside
		if readable {
			if _, err := os.Readlink(path); err != nil {
				t.Errorf("the journal was replaced: %v", err)
			}
			from, to = aside, path
		}
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		if !readable {
			if err := os.Symlink(path, path); err != nil {
				t.Fatal(err)
			}
		}
	}
	return path, allow
}

// A journal that cannot be read stays as it is, and is used as soon as it can be read. Until then, flanneld restores nothing,
// takes nothing for complete, and saves nothing in its place.
func TestUnreadableJournal(t *testing.T) {
	for _, later := range []bool{false, true} {
		path, allow := refusable(t)
		m := hnstest.New()
		defer m.Close() //nolint:errcheck // it counts handles, of which there are none
		before := Journal{Networks: []string{"cbr0"}, Boot: "boot 0", LastGood: staticSnapshot(m), Snapshot: staticSnapshot(m)}
		before.Snapshot.Adapter = "Former"
		if err := WriteJournal(path, before); err != nil {
			t.Fatal(err)
		}
		before, err := ReadJournal(path) // times lose their monotonic part
		if err != nil {
			t.Fatal(err)
		}
		if !later {
			allow(false)
		}
		k := onJournal(t, path)
		if later {
			allow(false)
		} else if err := k.Restore(nil); !k.Pending() || !k.NeedsStatic() || !reconcile.IsUnknown(err) {
			t.Errorf("pending: %t, needs a static address: %t, Restore: %v", k.Pending(), k.NeedsStatic(), err)
		}
		a := m.Admin().Adapter("Ethernet")
		if err := k.Save(a, a, m.Admin().Adapters(), m.Admin().Routes()); err == nil {
			t.Errorf("unreadable later: %t: saved other settings", later)
		}
		if err := k.SetOwned("flannel.4096", false, true); err == nil {
			t.Errorf("unreadable later: %t: owns a network", later)
		}
		allow(true)
		if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(j, before) {
			t.Errorf("unreadable later: %t: the journal holds %+v, %v", later, j, err)
		}
		if owned := k.Owned(false); !reflect.DeepEqual(owned, before.Networks) || k.ReadErr() != nil || !k.HasSnapshot() {
			t.Errorf("unreadable later: %t: owns %v, has a snapshot: %t, error %v", later, owned, k.HasSnapshot(), k.ReadErr())
		}
		if err := k.SetOwned("flannel.4096", false, true); err != nil {
			t.Error(err)
		}
		before.Networks = append(before.Networks, "flannel.4096")
		if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(j, before) {
			t.Errorf("unreadable later: %t: afterwards, the journal holds %+v, %v", later, j, err)
		}
	}
}

// What a boot may have changed is not recorded as the last good settings before it was compared with those.
func TestComparedBeforeRecorded(t *testing.T) {
	path, allow := refusable(t)
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	former, last := netip.MustParsePrefix("10.99.0.7/24"), staticSnapshot(m)
	last.Addresses[0].Prefix = former
	if err := WriteJournal(path, Journal{LastGood: last, Boot: "an earlier one"}); err != nil {
		t.Fatal(err)
	}
	allow(false)
	k := onJournal(t, path)
	allow(true)
	a := m.Admin().Adapter("Ethernet")
	if err := k.RecordGood(a, a, m.Admin().Routes()); err != nil {
		t.Fatal(err)
	}
	if j, err := ReadJournal(path); err != nil || j.LastGood == nil || j.LastGood.Addresses[0].Prefix != former || j.Snapshot == nil || !j.Snapshot.AtBoot {
		t.Errorf("the journal holds %+v, %v", j, err)
	}
}
