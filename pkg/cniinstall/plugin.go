package cniinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"flannel/pkg/file"
)

const pluginMode = 0o755

// plugin returns the target for a CNI plugin: a program, which is copied.
func (f Files) plugin(from, to string) target {
	return target{from, to, func(enforce bool) (plan, error) { return f.planPlugin(from, to, enforce) }}
}

func (f Files) planPlugin(from, to string, enforce bool) (plan, error) {
	want, err := os.ReadFile(from)
	if err != nil {
		return plan{}, fmt.Errorf("install CNI plugin: %w", err)
	}
	if file.Holds(to, want, pluginMode) {
		return plan{}, nil
	}
	next := plan{reason: "changed", update: enforce, write: func() (bool, error) {
		if _, err := file.Put(to, want, pluginMode); err != nil {
			return false, fmt.Errorf("install CNI plugin: %w", err)
		}
		return true, nil
	}}
	info, err := os.Lstat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		next.reason = "missing"
	case err == nil && info.Mode().IsRegular() && !f.ReplacePlugin:
		kept, broken := comparePlugins(from, to, want)
		if kept != "" {
			return plan{kept: kept}, nil
		}
		next.awaitStable, next.found = broken != nil, broken
	}
	return next, nil
}

// comparePlugins compares the installed plugin with its source, whose content is
// want. kept says why the installed one is left in place, because a configuration
// may need what ours lacks; "": it is replaced. broken is its content if it is not a
// usable plugin, which includes one that another program is writing.
func comparePlugins(from, to string, want []byte) (kept string, broken []byte) {
	content, err := os.ReadFile(to)
	if err != nil || bytes.Equal(content, want) {
		return "", nil // only its mode is wrong
	}
	ours, err := identify(from)
	if err != nil {
		return "", nil // ours does not run on this machine: there is nothing to compare
	}
	installed, err := identify(to)
	switch {
	case errors.Is(err, errCannotAsk):
		return "it " + err.Error(), nil
	case err != nil:
		return "", content
	}
	return ours.reasonToKeep(installed), nil
}
