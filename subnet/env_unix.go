//go:build !windows

package subnet

import (
	"path/filepath"

	"github.com/google/renameio/v2"
)

func replaceFile(path string, text []byte) error {
	// Beside the file, for another directory may be another file system.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(0o644))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}
