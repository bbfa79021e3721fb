package install

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// identity is a CNI plugin's answer to VERSION, by which comparePlugins decides whether an
// installed plugin is replaced by ours (the source). The specification defines only
// supportedVersions; flanneld's plugin adds implementation and release. Both are
// "" for other plugins.
type identity struct {
	Supported      []string `json:"supportedVersions"`
	Implementation string   `json:"implementation"`
	Release        string   `json:"release"`
}

var (
	// errNoPlugin means that a program ends without an answer to VERSION, or may not be
	// executed, so that no runtime can use it. It is replaced by ours, after a wait, since
	// another program may be writing it (comparePlugins).
	errNoPlugin = errors.New("does not answer VERSION")
	// errNotNow means that a program could not be read or started for a reason that may pass
	// (temporary), was ended by a signal, or did not answer in time. Memory may be short, the
	// machine slow, or another program may have the file open.
	errNotNow = errors.New("cannot be asked for VERSION at the moment")
	// errCannotAsk means that a program cannot be started in this container. It
	// may work on the node, so it is kept.
	errCannotAsk = errors.New("cannot be run in this container")
)

// isTemporary reports whether an error has a cause of temporary.
func isTemporary(err error) bool {
	return slices.ContainsFunc(temporary, func(cause error) bool { return errors.Is(err, cause) })
}

// notNow adds errNotNow to an error that has a cause of temporary.
func notNow(err error) error {
	if isTemporary(err) {
		return fmt.Errorf("%w: %w", errNotNow, err)
	}
	return err
}

// versionTimeout is the timeout for the answer to VERSION.
const versionTimeout = 5 * time.Second

// identify calls VERSION of the plugin at path. The error is errNoPlugin, errNotNow,
// errCannotAsk, or errChanged if there is no such file.
func identify(path string) (id identity, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	// VERSION needs only CNI_COMMAND, but plugins made with an old version of CNI's library
	// require all variables.
	cmd.Env = []string{"CNI_COMMAND=VERSION", "CNI_CONTAINERID=none", "CNI_NETNS=none", "CNI_IFNAME=none", "CNI_PATH=none"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	cmd.WaitDelay = time.Second // a child of the program may keep its output open
	var out bytes.Buffer
	cmd.Stdout = &out
	err = cmd.Run()
	exit, ended := errors.AsType[*exec.ExitError](err)
	bySignal := ended && !exit.Exited() // also by the kernel when memory is short
	switch {
	case err != nil && ctx.Err() != nil, bySignal, isTemporary(err):
		return id, fmt.Errorf("%s %w: %w", path, errNotNow, cmp.Or(ctx.Err(), err))
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(path); err != nil {
			return id, errChanged // deleted since digest
		}
		return id, errCannotAsk // its interpreter or dynamic loader is missing
	case json.Unmarshal(out.Bytes(), &id) != nil || err != nil || len(id.Supported) == 0:
		return identity{}, errNoPlugin
	}
	return id, nil
}

// reasonToKeep returns why the installed plugin is kept, "" if it is replaced by
// ours. The rows are in the order in which they are looked at.
//
//	installed plugin                                 result
//	supports a CNI version that ours does not        kept
//	(ours has no implementation, e.g. host-local)    replaced
//	same implementation, newer release               kept
//	same implementation, other release               replaced
//	no implementation, only CNI below 1.0.0          replaced
//	no implementation (also flannel's own), lacks    replaced
//	  the CNI version of the configuration, which
//	  ours supports
//	any other                                        kept
//
// version is that of the configuration for these plugins, "" if there is none. The reason also says if the installed
// plugin lacks it.
func (ours identity) reasonToKeep(installed identity, version string) (kept string) {
	i := slices.IndexFunc(installed.Supported, func(v string) bool { return !slices.Contains(ours.Supported, v) })
	lacking := version != "" && !slices.Contains(installed.Supported, version)
	switch {
	case i >= 0:
		kept = fmt.Sprintf("it supports CNI %s, which ours does not", installed.Supported[i])
	case ours.Implementation == "": // from containernetworking/plugins, which do not report a release
		return ""
	case installed.Implementation == ours.Implementation:
		if !newer(installed.Release, ours.Release) {
			return ""
		}
		kept = fmt.Sprintf("it has release %s, ours has %s", installed.Release, ours.Release)
	case installed.Implementation == "" && !slices.ContainsFunc(installed.Supported, atLeast1):
		return "" // containernetworking/plugins up to v0.9.1 (2021), and former images of flanneld
	case installed.Implementation == "" && lacking && slices.Contains(ours.Supported, version):
		return "" // no pod could start with it
	default:
		kept = "it is of another maker"
	}
	if lacking {
		kept += ", and does not support CNI " + version + " of the configuration"
		if !slices.Contains(ours.Supported, version) {
			kept += " (nor does ours: set another cniVersion)"
		}
	}
	return kept
}

// atLeast1 reports whether a CNI version is 1.0.0 or above.
func atLeast1(version string) bool { return !strings.HasPrefix(version, "0.") }

// newer reports whether release a is newer than release b. Releases have the
// format of git describe: v1.3.0-rc.1 is before v1.3.0, and v1.3.0-4-gabcdef0 is
// after it. It is false if either has another format.
func newer(a, b string) bool {
	x, knownX := parseRelease(a)
	y, knownY := parseRelease(b)
	return knownX && knownY && slices.Compare(x, y) > 0
}

// parseRelease returns four numbers whose order is the order of releases: major,
// minor, patch, and the number of commits after the release, or -1 for a
// prerelease. For example, v1.3.0-4-gabcdef0 is 1, 3, 0, 4.
func parseRelease(s string) (numbers []int, ok bool) {
	s, ok = strings.CutPrefix(strings.TrimSuffix(s, "-dirty"), "v")
	core, suffix, hasSuffix := strings.Cut(s, "-")
	for part := range strings.SplitSeq(core, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil, false
		}
		numbers = append(numbers, n)
	}
	if !ok || len(numbers) != 3 {
		return nil, false
	}
	after := 0 // a release itself
	if hasSuffix {
		commits, hash, described := strings.Cut(suffix, "-g")
		n, err := strconv.Atoi(commits)
		if after = -1; described && err == nil && hash != "" {
			after = n
		}
	}
	return append(numbers, after), true
}
