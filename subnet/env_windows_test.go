package subnet

import (
	"errors"
	"path/filepath"
	"reflect"
	"testing"

	"flannel/internal/test/filetest"
	"flannel/pkg/file"
)

// A subnet file of somebody else is malformed, not missing, and is replaced even if its content is right.
func TestForeignEnv(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	if _, err := WriteEnv(path, dualEnv); err != nil {
		t.Fatal(err)
	}
	filetest.GiveAway(t, path)
	e, err := ReadEnv(path)
	if _, refused := errors.AsType[*file.UntrustedError](err); !refused || !errors.Is(err, ErrMalformed) || !e.IsZero() {
		t.Errorf("a foreign file: %+v, %v", e, err)
	}
	if changed, err := WriteEnv(path, dualEnv); err != nil || !changed {
		t.Errorf("written again: %t, %v", changed, err)
	}
	if e, err := ReadEnv(path); err != nil || !reflect.DeepEqual(e, dualEnv) {
		t.Errorf("after writing it: %+v, %v", e, err)
	}
}
