package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// An import that cannot be read is no missing configuration. In Wine, no link dangles.
func TestUnreadableImport(t *testing.T) {
	config := write(t, map[string]string{"config.toml": "version = 2\nimports = ['conf.d/*.toml']\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = 'b'\n"})
	dir := filepath.Join(filepath.Dir(config), "conf.d")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink("gone", filepath.Join(dir, "a.toml"))); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadContainerd(config, defaults); err == nil {
		t.Errorf("a dangling link is imported as %+v", got)
	}
}
