package file

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMounted(t *testing.T) {
	root, host := t.TempDir(), t.TempDir()
	inHost := host[len(filepath.VolumeName(host)):] // without the drive
	for _, path := range []string{filepath.Join(host, "both"), filepath.Join(root, inHost, "both"), filepath.Join(root, inHost, "volume")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	both, volume, neither := filepath.Join(host, "both"), filepath.Join(host, "volume"), filepath.Join(host, "neither")
	for _, c := range []struct{ root, path, want string }{
		{root, both, both}, {root, volume, filepath.Join(root, inHost, "volume")}, {root, neither, neither}, {root, "", ""}, {"", volume, volume},
	} {
		if got := Mounted(c.root, c.path); got != c.want {
			t.Errorf("Mounted(%q, %q) is %q, want %q", c.root, c.path, got, c.want)
		}
	}
}
