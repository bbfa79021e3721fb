package cniinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"flannel/pkg/file"
)

const pluginMode = 0o755

// plugin returns the target for a CNI plugin: a program, which is copied.
func plugin(from, to string) target {
	return target{from, to, func(enforce bool) (plan, error) { return planPlugin(from, to, enforce) }}
}

func planPlugin(from, to string, enforce bool) (plan, error) {
	want, err := os.ReadFile(from)
	if err != nil {
		return plan{}, fmt.Errorf("install CNI plugin: %w", err)
	}
	if file.Holds(to, want, pluginMode) {
		return plan{}, nil
	}
	reason := "changed"
	if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
		reason = "missing"
	}
	return plan{reason: reason, update: enforce, write: func() (bool, error) {
		if _, err := file.Put(to, want, pluginMode); err != nil {
			return false, fmt.Errorf("install CNI plugin: %w", err)
		}
		return true, nil
	}}, nil
}
