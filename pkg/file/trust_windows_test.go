package file

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"flannel/internal/test/filetest"
)

// everybody reports whether the permissions of a directory name everybody.
func everybody(t *testing.T, dir string) bool {
	t.Helper()
	descriptor, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(descriptor.String(), ";WD)")
}

// A directory that is created is closed to others, and those above it, which other
// programs may use, are not. An existing one stays as it is, however it is spelled.
func TestMkdirAll(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "run", "flannel")
	for range 2 {
		if err := MkdirAll(dir + `\`); err != nil {
			t.Fatal(err)
		}
	}
	if everybody(t, dir) || !everybody(t, filepath.Dir(dir)) {
		t.Errorf("everybody may use %s: %t, and the directory above it: %t", dir, everybody(t, dir), everybody(t, filepath.Dir(dir)))
	}
	if err := MkdirAll(strings.ToUpper(filepath.Dir(dir))); err != nil || !everybody(t, filepath.Dir(dir)) {
		t.Errorf("an existing directory: %v", err)
	}
	long := filepath.Join(root, strings.Repeat("l", 120), strings.Repeat("o", 120), strings.Repeat("ng", 60))
	if err := MkdirAll(long); err != nil {
		t.Fatal("a long path:", err)
	}
	if _, err := Put(filepath.Join(long, "file"), []byte("text"), 0o644); err != nil {
		t.Error("in a long path:", err)
	}
	file := filepath.Join(root, "file")
	if _, err := Put(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if err := MkdirAll(path); err == nil {
			t.Errorf("created %s", path)
		}
	}
}

func TestLongPath(t *testing.T) {
	long := strings.Repeat("d", 300)
	for path, want := range map[string]string{
		`C:\run`: `C:\run`, `C:\` + long: `\\?\C:\` + long, `\\host\share\` + long: `\\?\UNC\host\share\` + long, `\\?\C:\` + long: `\\?\C:\` + long,
	} {
		if got := longPath(path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// A file of somebody else is refused. What flanneld writes anew does not destroy it.
func TestForeignFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hns.json")
	if _, err := ReadTrusted(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, written := range []string{"first", "again"} { // PutJSON writes the same text each time
		if err := os.WriteFile(path, []byte(written), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := ReadTrusted(path); err != nil || string(text) != written {
			t.Errorf("our own file: %q, %v", text, err)
		}
		filetest.GiveAway(t, path)
		_, err := ReadTrusted(path)
		if refused, ok := errors.AsType[*UntrustedError](err); !ok || refused.Path != path || refused.SID == "" || !Unusable(err) {
			t.Errorf("a foreign file: %v", err)
		}
		if err := PutJSON(path, 1); err != nil {
			t.Fatal(err)
		}
		var v int
		if text, err := ReadTrusted(path); err != nil || json.Unmarshal(text, &v) != nil || v != 1 {
			t.Errorf("after writing it: %q, %v", text, err)
		}
		if text, err := os.ReadFile(path + ".refused"); err != nil || string(text) != written {
			t.Errorf("what was refused: %q, %v", text, err)
		}
	}
	if err := OwnerUnknown(filepath.Dir(path)); err != nil {
		t.Errorf("the owner of a directory: %v", err)
	}
	if err := OwnerUnknown(path + ".none"); err == nil {
		t.Error("a missing directory has an owner")
	}
}
