package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// containerdFile is what one configuration file says.
type containerdFile struct {
	path     string
	version  int64    // of the format
	hasTable bool     // it has the table of the CRI plugin, perhaps without settings of CNI
	disabled bool     // the CRI plugin
	conf     string   // conf_dir; "": not set, as the others
	bin      string   // bin_dir
	bins     []string // bin_dirs
}

// loadContainerd returns the file at path, and those that it imports, in the order in which
// containerd reads them; none if the file at path does not exist. A missing import is an
// error, as in containerd. sources are the paths of all of them, and the directories in
// which it looked for files of a pattern, also with an error.
func loadContainerd(path string) (files []containerdFile, sources []string, err error) {
	sources = []string{path}
	version := int64(1) // of a file that has none
	for queue := []string{path}; len(queue) > 0; queue = queue[1:] {
		if slices.ContainsFunc(files, func(f containerdFile) bool { return f.path == queue[0] }) {
			continue // imported twice
		}
		f, imports, err := parseContainerd(queue[0], version)
		switch {
		case len(files) == 0 && errors.Is(err, fs.ErrNotExist):
			return nil, sources, nil
		case err != nil:
			return nil, sources, err
		case len(files) > 0 && f.version > version && f.hasTable:
			return nil, sources, fmt.Errorf("%w: %s has version %d, above that of %s, and is ignored since containerd 2.3", errAmbiguousContainerd, f.path, f.version, path)
		}
		if len(files) == 0 {
			version = f.version // imports without one have that of the first file
		}
		files = append(files, f)
		for _, pattern := range imports {
			full := joinPath(queue[0], pattern)
			found, err := filepath.Glob(full)
			sources = append(append(sources, searched(full)...), found...)
			if err != nil {
				return nil, sources, fmt.Errorf("%s: imports: %q: %w", queue[0], pattern, err)
			}
			if len(found) == 0 && !hasWildcard(pattern) {
				return nil, sources, fmt.Errorf("%s: imports: %s: %w", queue[0], pattern, fs.ErrNotExist)
			}
			queue = append(queue, found...)
		}
	}
	return files, sources, nil
}

// searched returns the paths in which new files of a pattern show: the directories in
// which it looks for them, or the file itself if the pattern has no wildcard.
func searched(pattern string) (paths []string) {
	for ; hasWildcard(pattern); pattern = filepath.Dir(pattern) {
		found, _ := filepath.Glob(filepath.Dir(pattern)) // of the error, loadContainerd learns as well
		paths = append(paths, found...)
	}
	return append(paths, pattern)
}

// hasWildcard reports whether a path is a pattern of filepath.Glob.
func hasWildcard(pattern string) bool { return strings.ContainsAny(pattern, "*?[") }

// parseContainerd reads one file. version is that of a file without one.
func parseContainerd(path string, version int64) (f containerdFile, imports []string, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return f, nil, err
	}
	var d struct {
		Version  *int64         `toml:"version"`
		Imports  []string       `toml:"imports"`
		Disabled []string       `toml:"disabled_plugins"`
		Plugins  map[string]any `toml:"plugins"`
	}
	if err := toml.Unmarshal(raw, &d); err != nil {
		return f, nil, fmt.Errorf("%s: %w", path, err)
	}
	f = containerdFile{path: path, version: version}
	if d.Version != nil {
		f.version = *d.Version
	}
	name := tableOf(f.version)
	f.disabled = slices.ContainsFunc(d.Disabled, func(id string) bool { return id == name || id == tableOf(1) || id == tableOf(2) })
	plugin, found := d.Plugins[name].(map[string]any)
	f.hasTable = found
	cni, _ := plugin["cni"].(map[string]any) // nil: no settings, the defaults
	for key, value := range cni {
		ok := true
		switch key {
		case "conf_dir":
			f.conf, ok = value.(string)
		case "bin_dir":
			f.bin, ok = value.(string)
		case "bin_dirs":
			f.bins, ok = texts(value)
		}
		if !ok {
			return f, nil, fmt.Errorf("%s: plugins.%q.cni.%s: %v is not a path", path, name, key, value)
		}
	}
	return f, d.Imports, nil
}

// tableOf returns the name of the plugin that has the settings of CNI, in a version of the
// format.
func tableOf(version int64) string {
	switch {
	case version <= 1:
		return "cri"
	case version == 2:
		return "io.containerd.grpc.v1.cri"
	}
	return "io.containerd.cri.v1.runtime"
}

// texts returns the texts of a list; ok is false if it is no list, or has other values.
func texts(value any) (all []string, ok bool) {
	list, ok := value.([]any)
	for _, v := range list {
		text, isText := v.(string)
		all, ok = append(all, text), ok && isText
	}
	return all, ok
}
