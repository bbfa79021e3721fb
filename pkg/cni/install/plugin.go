package install

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"flannel/pkg/file"
)

// pluginMode is the mode of an installed plugin.
const pluginMode = 0o755

// plugins returns the target of each plugin of PluginFrom. With an error there are none: the
// source may become readable, or a directory, later.
func (f Files) plugins() (targets []target, err error) {
	if f.PluginFrom == "" {
		return nil, nil
	}
	info, err := os.Stat(f.PluginFrom)
	if err != nil {
		return nil, fmt.Errorf("install CNI plugins: %w", err)
	}
	if !info.IsDir() {
		dir, name := filepath.Split(f.PluginTo) // name is empty after a separator at the end
		return []target{f.plugin(f.PluginFrom, filepath.Join(dir, cmp.Or(name, filepath.Base(f.PluginFrom))))}, nil
	}
	files, err := os.ReadDir(f.PluginFrom)
	if err != nil {
		return nil, fmt.Errorf("install CNI plugins: %w", err)
	}
	for _, e := range files {
		// A program that copies a plugin into the directory may give it such a name until it is whole.
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			targets = append(targets, f.plugin(filepath.Join(f.PluginFrom, e.Name()), filepath.Join(f.PluginTo, e.Name())))
		}
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("install CNI plugins: no plugin in %s", f.PluginFrom)
	}
	return targets, nil
}

// plugin returns the target for a CNI plugin: a program, which is copied.
func (f Files) plugin(from, to string) target {
	reads := f.ConfFrom // for cniVersion
	if f.ReplacePlugin {
		reads = ""
	}
	return target{from, to, reads, func(enforce bool) (plan, error) { return f.planPlugin(from, to, enforce) }}
}

// planPlugin compares a plugin with its source. enforce is as in target.plan.
func (f Files) planPlugin(from, to string, enforce bool) (plan, error) {
	same, err := file.IsCopy(from, to, pluginMode) // an error is about the source
	_, missing := os.Lstat(to)                     // not Stat: a symbolic link is not missing
	mayStay := missing == nil && !f.ReplacePlugin  // pods can use the installed plugin
	if err != nil {
		if mayStay {
			err = notNow(err)
		}
		return plan{}, fmt.Errorf("install CNI plugin: %w", err)
	}
	if same {
		return plan{}, nil
	}
	// There is no record of the plugin that was installed last, so a new source cannot be told
	// from a changed copy: every difference is a repair, except at the start (enforce).
	next := plan{reason: "changed", update: enforce, write: func() (bool, error) {
		if err := file.Copy(from, to, pluginMode); err != nil {
			return false, fmt.Errorf("install CNI plugin: %w", err)
		}
		return true, nil // written
	}}
	switch {
	case errors.Is(missing, fs.ErrNotExist):
		next.reason = "missing"
	case mayStay:
		kept, unusable, err := comparePlugins(from, to, f.cniVersion())
		switch {
		case unusable == nil && (kept != "" || err != nil):
			return plan{kept: kept}, err
		case err != nil: // it becomes the keeper's error if it lasts
			next.write = func() (bool, error) { return false, err }
		}
		next.awaitStable, next.found = unusable != nil, unusable
	}
	return next, nil
}

// cniVersion returns the CNI version of the configuration that is installed with the plugins; "": there is none, or its
// source cannot be read.
func (f Files) cniVersion() string {
	text, _ := os.ReadFile(f.ConfFrom)
	c, _ := parseConf(text) // empty with an error
	return c.text("cniVersion")
}

// comparePlugins compares the installed plugin with its source. version is as for reasonToKeep. kept says why the installed
// one is left in place, because a configuration may need what ours lacks; "": it is
// replaced. An error means that the plugins cannot be compared at the moment: the installed
// one stays; after errChanged, the next plan is made at once. unusable is the digest of its
// content if it is not a usable plugin, which includes one that another program is writing:
// the result, also the error, counts once the content has stayed the same. The source is
// asked after the installed plugin: if the source answers and the installed plugin does not,
// the machine is probably not the cause.
//
// A symbolic link counts as the file that it leads to. If that file does not exist, it may be
// a file of the node that this container does not have.
//
//	source                        installed plugin         result
//	any                           deleted meanwhile        errChanged
//	any                           link without a target    kept
//	any                           cannot be read           replaced; error if the cause is temporary
//	cannot be read, or errNotNow  any other                error: the installed plugin stays
//	errNoPlugin or errCannotAsk   any other                replaced: there is nothing to compare
//	answers                       errCannotAsk             kept
//	answers                       errNoPlugin, no answer   unusable: replaced
//	                                in time, or a signal
//	answers                       any other errNotNow      unusable, and error: the installed plugin stays
//	answers                       answers                  see reasonToKeep
func comparePlugins(from, to, version string) (kept string, unusable []byte, err error) {
	content, err := digest(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if info, err := os.Lstat(to); err != nil || info.Mode().IsRegular() {
			return "", nil, errChanged // deleted, perhaps made anew
		}
		return "it is a symbolic link to a file that does not exist here", nil, nil
	case isTemporary(err):
		return "", nil, fmt.Errorf("compare with the installed CNI plugin: %w", notNow(err))
	case err != nil:
		return "", nil, nil // whatever cannot be read is replaced
	}
	source, err := digest(from)
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("compare with the installed CNI plugin: %w", notNow(err))
	case bytes.Equal(source, content):
		return "", nil, nil // only its mode is wrong, or it is a link
	}
	installed, failed := identify(to)
	ours, err := identify(from)
	switch {
	case errors.Is(failed, errChanged):
		return "", nil, failed
	case errors.Is(err, errNotNow):
		return "", nil, fmt.Errorf("compare with the installed CNI plugin: %w", err)
	case err != nil:
		return "", nil, nil // ours does not run on this machine
	case errors.Is(failed, errCannotAsk):
		return "it " + failed.Error(), nil, nil
	case isTemporary(failed):
		return "", content, fmt.Errorf("compare with the installed CNI plugin: %w", failed)
	case failed != nil:
		return "", content, nil
	}
	return ours.reasonToKeep(installed, version), nil, nil
}

// digest returns a hash of the content of a regular file. A plugin has megabytes, which would
// stay in this process's memory for as long as it runs.
func digest(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path) // to open a FIFO may wait forever
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was read
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return nil, err
	}
	return hash.Sum(nil), nil
}
