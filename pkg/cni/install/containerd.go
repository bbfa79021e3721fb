package install

// This file finds out where containerd looks for CNI configurations and
// plugins: in the directories of its own configuration, or in its defaults.
//
// The format is documented in containerd's docs/cri/config.md and its manual page
// containerd-config.toml(5). The keys depend on the version of the format:
//
//	version  table                                      containerd
//	1        plugins.cri.cni                            1.x
//	2        plugins."io.containerd.grpc.v1.cri".cni    1.3 and later
//	3, 4     plugins."io.containerd.cri.v1.runtime".cni 2.0 and later
//
// Each has conf_dir, and either bin_dir or, since containerd 2.1, bin_dirs.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

// ContainerdCNI is where containerd looks.
type ContainerdCNI struct {
	Config string            // its configuration file, which need not exist
	Conf   ContainerdSetting // has one directory
	Bin    ContainerdSetting // has at least one
	// Sources are the files and directories that were read for this, or were missing;
	// a later ReadContainerd has the same result unless one of them changes. ReadContainerd
	// sets them also with an error.
	Sources []string
	// LookAgain is the time after which FindContainerd may have another result although no
	// source has changed: on Windows, the registry decides, too. 0: never. FindContainerd
	// sets it also with an error, and ReadContainerd never.
	LookAgain time.Duration
}

// ContainerdSetting is a value of the configuration.
type ContainerdSetting struct {
	Dirs      []string
	File, Key string // where it is set; "": it is containerd's default
}

// Origin says where the value comes from.
func (s ContainerdSetting) Origin() string {
	if s.File == "" {
		return "containerd's default"
	}
	return s.Key + " in " + s.File
}

// ErrNoContainerd means that this system has no containerd that uses CNI, or that it is not
// known how it was started.
var ErrNoContainerd = errors.New("no containerd was found")

// errAmbiguousContainerd means that the meaning of the configuration depends on the version of
// containerd.
var errAmbiguousContainerd = errors.New("versions of containerd read this differently")

// ReadContainerd reads the configuration that containerd was started with. defaults are used for
// what it does not set.
func ReadContainerd(config string, defaults ContainerdCNI) (ContainerdCNI, error) {
	files, sources, err := loadContainerd(config)
	c := ContainerdCNI{}
	switch {
	case err != nil:
		err = fmt.Errorf("read containerd's configuration: %w", err)
	case len(files) == 0:
		c = defaults // containerd starts without a file, too
	default:
		c, err = combine(files, defaults)
	}
	c.Config, c.Sources = config, sources
	return c, err
}

// combine returns what the files say together. The first one, of at least one, has imported
// the others.
func combine(files []containerdFile, defaults ContainerdCNI) (ContainerdCNI, error) {
	if i := slices.IndexFunc(files, func(f containerdFile) bool { return f.disabled }); i >= 0 {
		return ContainerdCNI{}, fmt.Errorf("%w that uses CNI: its plugin cri is in disabled_plugins in %s", ErrNoContainerd, files[i].path)
	}
	// Since 2.0, an import replaces single values (containerd#9982). Before, it replaces
	// the whole table of the plugin (containerd#5837).
	merged, err := settings(files, defaults)
	if err != nil || files[0].version >= 3 { // 3: only containerd 2.0 and later read it
		return merged, err
	}
	last := files[:0:0] // the last file with the table; none: the defaults
	for _, f := range files {
		if f.hasTable {
			last = []containerdFile{f}
		}
	}
	replaced, err := settings(last, defaults)
	if err == nil && !reflect.DeepEqual(merged, replaced) {
		err = fmt.Errorf("%w: %s replaces all settings of CNI in containerd 1.x, and only its own in 2.x; set conf_dir and bin_dir there", errAmbiguousContainerd, last[0].path)
	}
	return merged, err
}

// settings returns what the files set together; a later one takes precedence.
func settings(files []containerdFile, c ContainerdCNI) (ContainerdCNI, error) {
	var dir, dirs ContainerdSetting
	for _, f := range files {
		if f.conf != "" {
			c.Conf = ContainerdSetting{Dirs: []string{f.conf}, File: f.path, Key: "conf_dir"}
		}
		if f.bin != "" {
			dir = ContainerdSetting{Dirs: []string{f.bin}, File: f.path, Key: "bin_dir"}
		}
		if len(f.bins) > 0 {
			dirs = ContainerdSetting{Dirs: f.bins, File: f.path, Key: "bin_dirs"}
		}
	}
	switch {
	case dir.File != "" && dirs.File != "":
		return c, fmt.Errorf("%s and %s are both set, with which containerd does not start: remove bin_dir", dir.Origin(), dirs.Origin())
	case dir.File != "":
		c.Bin = dir
	case dirs.File != "":
		c.Bin = dirs
	}
	return c, nil
}

// configOf returns the file in the arguments of containerd (--config or -c), "" if it is the
// default one.
func configOf(args []string) string {
	for i, arg := range args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !strings.HasPrefix(arg, "-") || name != "config" && name != "c": // another argument
		case given:
			return value
		case i+1 < len(args):
			return args[i+1]
		}
	}
	return ""
}

// Missing returns a sentence that none of the directories exists, with where they are set; "" if
// one exists: containerd looks in each of them.
func (s ContainerdSetting) Missing() string {
	for _, dir := range s.Dirs {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return ""
		}
	}
	return fmt.Sprintf("%s does not exist (%s)", strings.Join(s.Dirs, ", "), s.Origin())
}

// joinPath returns the path of a file that is named relative to another one.
func joinPath(other, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(other), path)
}
