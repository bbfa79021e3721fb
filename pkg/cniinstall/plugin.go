package cniinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"flannel/pkg/file"
)

// plugin is a CNI plugin: a program, which is copied.
type plugin struct{ from, to string }

const pluginMode = 0o755

func (p plugin) paths() (from, to string) { return p.from, p.to }

func (p plugin) plan(enforce bool) (plan, error) {
	want, err := os.ReadFile(p.from)
	if err != nil {
		return plan{}, fmt.Errorf("install CNI plugin: %w", err)
	}
	if file.Holds(p.to, want, pluginMode) {
		return plan{}, nil
	}
	reason := "changed"
	if _, err := os.Lstat(p.to); errors.Is(err, fs.ErrNotExist) {
		reason = "missing"
	}
	return plan{reason: reason, update: enforce, write: func() error {
		if _, err := file.Put(p.to, want, pluginMode); err != nil {
			return fmt.Errorf("install CNI plugin: %w", err)
		}
		return nil
	}}, nil
}
