package hostconfig

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"flannel/internal/test/filetest"
	"flannel/pkg/file"
)

// A journal of somebody else is not used: it names networks to delete and addresses
// to set. The next one does not destroy it.
func TestForeignJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hns.json")
	foreign := Journal{Networks: []string{"of another program"}}
	if err := WriteJournal(path, foreign); err != nil {
		t.Fatal(err)
	}
	filetest.GiveAway(t, path)
	k := &Keeper{path: path}
	k.begin()
	if _, refused := errors.AsType[*file.UntrustedError](k.ReadErr()); !refused || len(k.Owned(false)) > 0 {
		t.Errorf("a foreign journal: %v, %v", k.Owned(false), k.ReadErr())
	}
	if err := k.SetOwned("flannel.4096", false, true); err != nil {
		t.Fatal(err)
	}
	if j, err := ReadJournal(path); err != nil || !reflect.DeepEqual(j, Journal{Networks: []string{"flannel.4096"}}) {
		t.Errorf("after writing it: %+v, %v", j, err)
	}
	if _, err := os.Stat(path + ".refused"); err != nil {
		t.Error(err)
	}
}
