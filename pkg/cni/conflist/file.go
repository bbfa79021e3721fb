package conflist

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

// Outcome is what Put did. Its Result is one of
//
//	written      the file did not exist
//	unchanged    the file has this configuration already
//	updated      the file had what Put wrote before
//	differs      the file was edited, or is not from Put; it was not changed
//	overwritten  as differs, but with force
//	shown        no file was to be written
//
// or, in the zero Outcome, empty: Put failed, or was not called.
type Outcome struct {
	Path   string          `json:"path"`
	Result string          `json:"result,omitempty"`
	Diff   string          `json:"diff,omitempty"`
	Conf   json.RawMessage `json:"conf,omitempty"`
}

// Record returns the path of the record, a copy of what Put wrote last. Put compares
// the file with it to recognize edits. It is in the directory of the subnet file.
func Record(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "cni-conf.json")
}

// lastWritten is the content of the record.
type lastWritten struct {
	Path string          `json:"path"`
	Conf json.RawMessage `json:"conf"`
}

// unedited reports whether the file at path, with this content, is what Put wrote.
// Without a readable record it is not: somebody may have written the file by hand.
func unedited(record, path string, content []byte) bool {
	var last lastWritten
	raw, err := file.ReadTrusted(record)
	return err == nil && json.Unmarshal(raw, &last) == nil && samePath(last.Path, path) && Equal(content, last.Conf)
}

// samePath compares paths as the system does: on Windows without regard to case.
func samePath(a, b string) bool {
	return a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b)
}

// Put writes the configuration to the file, unless somebody else wrote or edited
// the file and force is false. If the file is "-", it only returns the configuration.
func Put(to string, conf []byte, record string, force bool) (Outcome, error) {
	done := Outcome{Path: to, Result: "shown", Conf: conf}
	if to == "-" {
		return done, nil
	}
	to, err := filepath.Abs(to)
	if err != nil {
		return done, err
	}
	before, err := os.ReadFile(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		done.Result = "written"
	case err != nil:
		return done, err
	case Equal(before, conf):
		done.Result = "unchanged"
	default:
		done.Diff = Diff(before, conf)
		switch {
		case unedited(record, to, before):
			done.Result = "updated"
		case force:
			done.Result = "overwritten"
		default:
			done.Result = "differs"
			return done, nil
		}
	}
	if done.Result != "unchanged" {
		if _, err := file.Put(to, conf, 0o644); err != nil {
			return done, err
		}
	}
	// If we crash before this, the file has the right content, and the next run writes
	// the record.
	if err := file.PutJSON(record, lastWritten{to, conf}); err != nil {
		return done, fmt.Errorf("record what was written: %w", err)
	}
	return done, nil
}

// CheckPlugins returns an error if a program is missing in the directory; "" is not
// checked.
func CheckPlugins(dir string, programs []string) error {
	var missing []string
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(dir, name)); dir != "" && err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no %s: put the CNI plugins there (flanneld install-cni)", dir, strings.Join(missing, ", "))
	}
	return nil
}

// Text describes the outcome for a person.
func (o Outcome) Text() string {
	switch o.Result {
	case "":
		return ""
	case "shown":
		return strings.TrimSuffix(string(o.Conf), "\n")
	case "differs":
		return o.Diff + o.Path + " was edited, or was not written by cni-conf, and was not changed; --force overwrites it"
	}
	return o.Diff + o.Path + ": " + o.Result
}
