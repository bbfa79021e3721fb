package hostconfig

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/file"
)

// onJournal returns a Keeper with the journal at a path, on a machine of its own.
func onJournal(t *testing.T, path string) *Keeper {
	t.Helper()
	m := hnstest.New()
	t.Cleanup(func() { _ = m.Close() }) // it counts handles, of which there are none
	var log logtest.Log
	return New(path, Limits{}, m, log.Logger())
}

// A file that is not a journal is set aside before flanneld writes its own, also if it was one when flanneld started.
func TestBrokenJournal(t *testing.T) {
	for _, later := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "hns.json")
		broken := `{"Before": {"Addresses": [{"Prefix": "nonsense"}]}}`
		breaks := func() {
			if err := os.WriteFile(path, []byte(broken), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if !later {
			breaks()
		}
		k := onJournal(t, path)
		if file.Unusable(k.ReadErr()) == later {
			t.Errorf("broken later: %t: got %v", later, k.ReadErr())
		}
		want := Journal{Networks: []string{"flannel.4096"}}
		if later {
			if err := k.SetOwned("cbr0", false, true); err != nil {
				t.Fatal(err)
			}
			want.Networks = []string{"cbr0", "flannel.4096"}
			breaks()
		}
		if err := k.SetOwned("flannel.4096", false, true); err != nil {
			t.Fatal(err)
		}
		if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(j, want) {
			t.Errorf("broken later: %t: the journal holds %+v, %v", later, j, err)
		}
		if text, err := os.ReadFile(path + ".refused"); err != nil || string(text) != broken {
			t.Errorf("broken later: %t: %q was set aside, %v", later, text, err)
		}
	}
}

// The journal of a host with 10,000 routes, is one of flanneld.
func TestLargeJournal(t *testing.T) {
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	want := Journal{Snapshot: staticSnapshot(m)}
	for n := range 10000 {
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + n>>8), byte(n), 0}), 24)
		want.Snapshot.Routes = append(want.Snapshot.Routes, SavedRoute{dst, netip.AddrFrom4([4]byte{192, 168, byte(n >> 8), byte(n)}), 256})
	}
	path := filepath.Join(t.TempDir(), "hns.json")
	if err := WriteJournal(path, want); err != nil {
		t.Fatal(err)
	}
	if j, err := ReadJournal(path); err != nil || !slices.Equal(j.Snapshot.Routes, want.Snapshot.Routes) {
		t.Errorf("got %v", err)
	}
}
