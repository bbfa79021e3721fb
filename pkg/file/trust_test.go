package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// A file with another content is told apart from one that is missing or cannot be read.
func TestReadJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hns.json")
	var v struct{ Name string }
	if err := ReadJSON(path, &v); !errors.Is(err, fs.ErrNotExist) || Unusable(err) {
		t.Errorf("no file: %v", err)
	}
	if err := ReadJSON(filepath.Dir(path), &v); err == nil || errors.Is(err, fs.ErrNotExist) || Unusable(err) {
		t.Errorf("a directory: %v", err)
	}
	for _, text := range []string{"", "\x00\x00", `{"Name": 1}`, `{"Name": "` + strings.Repeat("x", maxJSON) + `"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ReadJSON(path, &v); !Unusable(err) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if err := PutJSON(path, map[string]string{"Name": "cbr0"}); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(path, &v); err != nil || v.Name != "cbr0" {
		t.Errorf("got %+v, %v", v, err)
	}
}

// Owners other than administrators are refused. In doubt, that is on a volume
// without owners, they are not.
func TestTrusted(t *testing.T) {
	const user, member, other = "S-1-5-21-1-2-3-1001", "S-1-5-21-1-2-3-1002", "S-1-5-21-1-2-3-1003"
	noAnswer := errors.New("no answer")
	for _, c := range []struct {
		owner string
		list  error // of listing the administrators
		want  bool
	}{
		{"S-1-5-18", noAnswer, true}, {"S-1-5-32-544", noAnswer, true}, {"S-1-5-93-2-1", noAnswer, true}, {"S-1-1-0", noAnswer, true},
		{"S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464", noAnswer, true},
		{user, noAnswer, true}, {"S-1-5-21-1-2-3-500", noAnswer, true},
		{member, nil, true}, {member, noAnswer, false}, {other, nil, false},
		{"S-1-5-93-2-2", nil, false}, // ContainerUser
		{"S-1-5-32-545", nil, false}, {"S-1-5-21-1-2-3-1500", nil, false}, {"S-1-5-21-500", nil, false}, {"", nil, false},
	} {
		got, err := trusted(c.owner, user, func() ([]string, error) {
			if c.list != nil {
				return nil, c.list
			}
			return []string{"S-1-5-21-1-2-3-512", member}, nil
		})
		if got != c.want || !got && !errors.Is(err, c.list) {
			t.Errorf("%q: %t, %v", c.owner, got, err)
		}
	}
}

// An owner that may be an administrator, whom Windows does not list at the moment, does not make a file unusable.
func TestOwnerNotJudged(t *testing.T) {
	for err, want := range map[error]bool{&UntrustedError{Path: "hns.json"}: true, &UntrustedError{Path: "hns.json", Err: errors.New("no answer")}: false} {
		if got := Unusable(fmt.Errorf("read it: %w", err)); got != want {
			t.Errorf("%v: unusable %t", err, got)
		}
	}
}

// The error says all that is needed to mend it.
func TestUntrustedError(t *testing.T) {
	err := &UntrustedError{Path: `C:\run\flannel\hns.json`, SID: "S-1-5-21-1-2-3-1003", Name: `NODE\eve`}
	for _, part := range []string{
		err.Path, err.SID, err.Name,
		`icacls "C:\run\flannel\hns.json" /setowner *S-1-5-32-544`,
		`icacls "C:\run\flannel\hns.json" /inheritance:r /grant:r *S-1-5-18:F *S-1-5-32-544:F /remove:g *S-1-5-21-1-2-3-1003`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
	// Whoever may be an administrator, which is not known, does not lose the file.
	err.Err = errors.New("status 1722")
	if text := err.Error(); !logtest.Names(text, err.Path, err.SID, err.Name, "status 1722") || logtest.Names(text, "icacls") || logtest.Names(text, "delete") {
		t.Errorf("got %s", text)
	}
}
