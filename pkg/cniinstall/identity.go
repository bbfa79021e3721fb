package cniinstall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// identity is a CNI plugin's answer to VERSION. The specification defines only the
// versions of CNI; our own plugin adds its maker and its release.
type identity struct {
	Supported      []string `json:"supportedVersions"`
	Implementation string   `json:"implementation"`
	Release        string   `json:"release"`
}

var (
	// errNoPlugin means that a program does not answer VERSION: no runtime can use it.
	errNoPlugin = errors.New("does not answer VERSION")
	// errCannotAsk means that a program cannot be run in this container. It may run on
	// the node.
	errCannotAsk = errors.New("cannot be run here")
)

// askLimit bounds how long a plugin may take to answer VERSION.
const askLimit = 5 * time.Second

// identify asks the plugin at path. The error is errNoPlugin or errCannotAsk.
func identify(path string) (id identity, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=VERSION", "CNI_CONTAINERID=none", "CNI_NETNS=none", "CNI_IFNAME=none", "CNI_PATH=none"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	err = cmd.Run()
	switch {
	case errors.Is(err, fs.ErrNotExist): // its interpreter or loader does not exist
		return id, errCannotAsk
	case json.Unmarshal(out.Bytes(), &id) != nil || err != nil || len(id.Supported) == 0:
		return identity{}, errNoPlugin
	}
	return id, nil
}

// keeps returns why ours does not replace the plugin that is there; "": it does.
func (ours identity) keeps(there identity) string {
	for _, v := range there.Supported {
		if !slices.Contains(ours.Supported, v) {
			return fmt.Sprintf("it speaks CNI %s, which ours does not", v)
		}
	}
	switch {
	case ours.Implementation == "": // one of the plugins' own repository, which do not tell their release
		return ""
	case there.Implementation == ours.Implementation:
		if newer(there.Release, ours.Release) {
			return fmt.Sprintf("it is of release %s, ours of %s", there.Release, ours.Release)
		}
		return ""
	case there.Implementation == "" && !slices.ContainsFunc(there.Supported, atLeast1):
		return "" // of 2021 or before: the plugins' own repository had it, and our images up to now
	}
	return "it is of another maker"
}

// atLeast1 reports whether a version of CNI is 1.0.0 or above.
func atLeast1(version string) bool { return !strings.HasPrefix(version, "0.") }

// newer reports whether release a comes after release b. Releases have the form of
// git describe: v1.3.0-rc.1 is before v1.3.0, and v1.3.0-4-gabcdef0 is after it. A
// release in another form is not newer.
func newer(a, b string) bool {
	x, knownX := parseRelease(a)
	y, knownY := parseRelease(b)
	return knownX && knownY && slices.Compare(x, y) > 0
}

// parseRelease returns numbers that compare as releases do: the three of the
// release, and the number of commits after it, or -1 for one before it.
func parseRelease(s string) (numbers []int, ok bool) {
	s, ok = strings.CutPrefix(strings.TrimSuffix(s, "-dirty"), "v")
	core, rest, more := strings.Cut(s, "-")
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
	after := 0
	if more {
		commits, hash, described := strings.Cut(rest, "-g")
		n, err := strconv.Atoi(commits)
		if after = -1; described && err == nil && hash != "" {
			after = n
		}
	}
	return append(numbers, after), true
}
