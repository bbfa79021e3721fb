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
	Path    string          `json:"path"`
	Conf    json.RawMessage `json:"conf"`
	Refused Options         `json:"refused,omitzero"` // left out, because HNS refuses them
}

// File is the file that Put is to write, as it is before. The zero File does not exist.
type File struct {
	path, record string
	force        bool // overwrite what somebody else wrote or edited
	exists       bool
	content      []byte
	ours         bool // the record is about this file, and nobody edited it
	refused      Options
}

// Open reads the file. The path "-" is a file that does not exist and is not written. Without a
// readable record, somebody may have written the file by hand.
func Open(to, record string, force bool) (File, error) {
	f := File{path: to, record: record, force: force}
	if to == "-" {
		return f, nil
	}
	var err error
	if f.path, err = filepath.Abs(to); err != nil {
		return f, err
	}
	f.content, err = os.ReadFile(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	f.exists = err == nil
	var last lastWritten
	raw, err := file.ReadTrusted(record)
	if err == nil && json.Unmarshal(raw, &last) == nil && f.exists && samePath(last.Path, f.path) && Equal(f.content, last.Conf) {
		f.ours, f.refused = true, last.Refused
	}
	return f, nil
}

// Keeps reports whether Put leaves the content of the file as it is, because it is that of s or
// somebody else's.
func (f File) Keeps(s Spec) bool {
	if f.exists && !f.ours && !f.force {
		return true
	}
	conf, err := Make(s)
	return f.exists && !f.force && err == nil && Equal(f.content, conf)
}

// Refused returns the options that Put was told to record with the file.
func (f File) Refused() Options { return f.refused }

// Options returns the options that the configuration in the file has. exists is false if there is no file.
func (f File) Options() (has Options, exists bool) {
	var c struct {
		conf
		Plugins []conf
	}
	if json.Unmarshal(f.content, &c) != nil {
		return Options{}, f.exists
	}
	for _, plugin := range append(c.Plugins, c.conf) {
		d := plugin.Delegate
		has.LoopbackDSR = has.LoopbackDSR || d.LoopbackDSR || d.OptionalFlags["loopbackDSR"]
		for _, p := range d.Policies {
			has.EncapOverhead = has.EncapOverhead || typeOf(p.Value) == encapOverhead
		}
		for _, p := range d.AdditionalArgs {
			has.EncapOverhead = has.EncapOverhead || typeOf(p.Value) == encapOverhead
		}
	}
	return has, f.exists
}

// typeOf returns the type of a policy that was decoded.
func typeOf(policy any) any {
	fields, _ := policy.(map[string]any)
	return fields["Type"]
}

// samePath compares paths as the system does: on Windows without regard to case.
func samePath(a, b string) bool {
	return a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b)
}

// Put writes the configuration to the file, unless somebody else wrote or edited
// the file and force is false. If the file is "-", it only returns the configuration.
// It records that the configuration lacks options that HNS refuses.
func (f File) Put(conf []byte, refused Options) (Outcome, error) {
	done := Outcome{Path: f.path, Result: "shown", Conf: conf}
	if f.path == "-" {
		return done, nil
	}
	switch {
	case !f.exists:
		done.Result = "written"
	case Equal(f.content, conf):
		done.Result = "unchanged"
	default:
		done.Diff = Diff(f.content, conf)
		switch {
		case f.ours:
			done.Result = "updated"
		case f.force:
			done.Result = "overwritten"
		default:
			done.Result = "differs"
			return done, nil
		}
	}
	if done.Result != "unchanged" {
		if _, err := file.Put(f.path, conf, 0o644); err != nil {
			return done, err
		}
	}
	// If we crash before this, the file has the right content, and the next run writes
	// the record.
	if err := file.PutJSON(f.record, lastWritten{f.path, conf, refused}); err != nil {
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
