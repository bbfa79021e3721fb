package cniconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"flannel/pkg/file"
)

// Written is what Put did.
type Written struct {
	Path   string          `json:"path"`
	Result string          `json:"result,omitempty"` // "written", "unchanged", "updated", "differs" (and was left alone), "overwritten", "shown"
	Diff   string          `json:"diff,omitempty"`
	Conf   json.RawMessage `json:"conf,omitempty"`
}

// Record is where stands what Put wrote last, by which an edit is known: beside the subnet file.
func Record(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "cni-conf.json")
}

// lastWritten is the record.
type lastWritten struct {
	Path string          `json:"path"`
	Conf json.RawMessage `json:"conf"`
}

// untouched tells whether a file still says what cni-conf wrote. A record that is lost, or cannot be read, is that of
// nothing: then the file may be somebody's work.
func untouched(record, path string, is []byte) bool {
	var last lastWritten
	raw, err := os.ReadFile(record)
	return err == nil && json.Unmarshal(raw, &last) == nil && samePath(last.Path, path) && Same(is, last.Conf)
}

// samePath: Windows knows files by their names in any case, and scripts spell its drives in both.
func samePath(a, b string) bool {
	return a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b)
}

// remember writes the record. It comes after the file: a crash between the two leaves a file that says what is asked
// for, and the next run writes the record.
func remember(record string, last lastWritten) error {
	raw, err := json.MarshalIndent(last, "", "  ")
	if err == nil {
		_, err = file.Put(record, append(raw, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("remember what was written: %w", err)
	}
	return nil
}

// Put writes the file unless it says something else that cni-conf did not write: that may be somebody's work. - as a file
// only shows it.
func Put(to string, conf []byte, record string, force bool) (Written, error) {
	done := Written{Path: to, Result: "shown", Conf: conf}
	if to == "-" {
		return done, nil
	}
	to, err := filepath.Abs(to)
	if err != nil {
		return done, err
	}
	was, err := os.ReadFile(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		done.Result = "written"
	case err != nil:
		return done, err
	case Same(was, conf):
		done.Result = "unchanged"
		return done, remember(record, lastWritten{to, conf})
	default:
		done.Diff = Diff(was, conf)
		switch {
		case untouched(record, to, was):
			done.Result = "updated"
		case force:
			done.Result = "overwritten"
		default:
			done.Result = "differs"
			return done, nil
		}
	}
	if _, err := file.Put(to, conf, 0o644); err != nil {
		return done, err
	}
	return done, remember(record, lastWritten{to, conf})
}

// HasPlugins looks for programs in a directory, if it is given one.
func HasPlugins(dir string, programs []string) error {
	var gone []string
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(dir, name)); dir != "" && err != nil {
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 {
		return fmt.Errorf("%s has no %s: put the CNI plugins there (flanneld install-cni)", dir, strings.Join(gone, ", "))
	}
	return nil
}

// Text is what a person reads of it.
func (w Written) Text() string {
	switch w.Result {
	case "":
		return ""
	case "shown":
		return strings.TrimSuffix(string(w.Conf), "\n")
	case "differs":
		return w.Diff + w.Path + " was edited, or is not of cni-conf, and was left alone; --force overwrites it"
	}
	return w.Diff + w.Path + ": " + w.Result
}
