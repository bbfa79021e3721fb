// This file writes the configuration, for the commands cni-conf and node: Open reads what is there, ToTry says what HNS
// should be asked (node.CNISources.TryInHNS does), and Put writes.
//
// HNS refuses some options on some machines, and then pods do not start. Those that no flag sets are in doubt. In a trial,
// HNS is asked to create an endpoint with such an option. What HNS refuses is left out of the configuration.

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
// or, in the zero Outcome, empty: Put was not called. With an error of Put it means nothing.
type Outcome struct {
	Path   string          `json:"path"`
	Result string          `json:"result,omitempty"`
	Diff   string          `json:"diff,omitempty"`
	Conf   json.RawMessage `json:"conf,omitempty"`
}

// Record returns the path of the record, a copy of what Put wrote last to each path. Put
// compares the file with it to recognize edits. It is in the directory of the subnet file.
func Record(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "cni-conf.json")
}

// records is the content of the record. What was written last is on top, where former
// versions, which know one path, read it.
type records struct {
	lastWritten
	Others []lastWritten `json:"others,omitempty"` // of other paths whose files are not known to be deleted
}

// readRecords returns what Put wrote last to the file, nil if that is not known, and what
// it wrote to other files. A record that is missing, not trusted (on Windows, somebody but
// an administrator owns it) or no JSON is empty. After another error, nobody knows what it
// has.
func (f *File) readRecords() (own *lastWritten, others []lastWritten, err error) {
	var r records
	err = file.ReadJSON(f.record, &r)
	switch {
	case errors.Is(err, fs.ErrNotExist), file.Unusable(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	for _, last := range append(r.Others, r.lastWritten) {
		if samePath(last.Path, f.path) {
			own = &last
		} else if _, err := os.Stat(last.Path); !errors.Is(err, fs.ErrNotExist) {
			others = append(others, last)
		}
	}
	return own, others, nil
}

// lastWritten is what Put wrote last to one path.
type lastWritten struct {
	Path   string          `json:"path"`
	Conf   json.RawMessage `json:"conf"`
	Before json.RawMessage `json:"before,omitempty"` // in the file until it has Conf; only while Put writes it
	Base   json.RawMessage `json:"base,omitempty"`   // Conf without options that HNS may refuse; the options were tried with it
	Decisions
}

// Decisions are what is known of the options that HNS may refuse. In JSON they are part of the record
// of Put.
type Decisions struct {
	LeftOut Options `json:"leftOut,omitzero"` // the configuration lacks them, if it would have them
	Tried   Options `json:"tried,omitzero"`   // HNS accepted or refused them, or a flag sets them: they need no trial
}

// File is the file that Put is to write, as it was when it was read.
type File struct {
	to, record string  // the path that was given, or "-"; the path of the record
	wanted     Spec    // with the options in doubt
	doubt      Options // that HNS may refuse, and no flag sets
	force      bool    // overwrite what somebody else wrote or edited

	path    string // absolute; empty: the configuration is only to be shown
	exists  bool
	content []byte    // nil if it does not exist
	ours    bool      // Put wrote it, and nobody edited it: it may be replaced
	last    Decisions // those of the record, or else of the file: see read
}

// Open reads the file, which is to have the wanted configuration, but for options in doubt that HNS
// refuses. The path "-" is a file that does not exist and is not written.
func Open(to, record string, wanted Spec, doubt Options, force bool) (File, error) {
	f := File{to: to, record: record, wanted: wanted, doubt: doubt, force: force}
	return f, f.read()
}

// read reads the file and the record.
//
//	record                | the file is ours if it has            | options are left out
//	has this path         | what the record says                  | as recorded
//	none, or not readable | the wanted configuration, with or     | as in the file
//	                      | without options in doubt              |
//
// Otherwise somebody may have written the file by hand. If nothing is known of the options, EncapOverhead
// is left out, and LoopbackDSR is not. What was tried with another base (see lastWritten) needs another trial.
func (f *File) read() (err error) {
	f.exists, f.content, f.ours = false, nil, false
	f.last = Decisions{LeftOut: Options{EncapOverhead: true}}
	defer f.useGiven()
	base, err := Make(f.wanted.Without(Options{LoopbackDSR: true, EncapOverhead: true}))
	if err != nil || f.to == "-" {
		return err // with "-", path stays ""
	}
	if f.path, err = filepath.Abs(f.to); err != nil {
		return err
	}
	f.content, err = os.ReadFile(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.exists = err == nil
	last, _, _ := f.readRecords() // after an error, Put writes nothing
	lacks, wanted := f.lacks()
	f.ours = f.exists && (last == nil && wanted || last != nil && (Equal(f.content, last.Conf) || last.Before != nil && Equal(f.content, last.Before)))
	switch {
	case last != nil && last.Base != nil: // a record of a former version has no Base, and no Decisions
		if f.last = last.Decisions; !Equal(last.Base, base) {
			f.last.Tried = Options{}
		}
	case f.ours && wanted:
		f.last.LeftOut = lacks
	}
	return nil
}

// given returns the options that flags set: they are wanted, and not in doubt.
func (f *File) given() Options {
	return Options{LoopbackDSR: f.wanted.LoopbackDSR && !f.doubt.LoopbackDSR, EncapOverhead: f.wanted.EncapOverhead > 0 && !f.doubt.EncapOverhead}
}

// useGiven makes f.last keep the options that flags set, without a trial.
func (f *File) useGiven() {
	given := f.given()
	if given.LoopbackDSR {
		f.last.LeftOut.LoopbackDSR, f.last.Tried.LoopbackDSR = false, true
	}
	if given.EncapOverhead {
		f.last.LeftOut.EncapOverhead, f.last.Tried.EncapOverhead = false, true
	}
}

// lacks returns the options in doubt that the file lacks, if it has the wanted configuration but for them.
func (f *File) lacks() (lacks Options, wanted bool) {
	for _, lacks := range []Options{{}, {LoopbackDSR: true}, {EncapOverhead: true}, {LoopbackDSR: true, EncapOverhead: true}} {
		if lacks.LoopbackDSR && !f.doubt.LoopbackDSR || lacks.EncapOverhead && !f.doubt.EncapOverhead {
			continue
		}
		if conf, err := Make(f.wanted.Without(lacks)); err == nil && Equal(f.content, conf) {
			return lacks, true
		}
	}
	return Options{}, false
}

// Decisions returns what is known of the options before a trial.
func (f File) Decisions() Decisions { return f.last }

// Stays reports whether Put will not change the file, because somebody else wrote or edited it.
func (f File) Stays() bool { return f.exists && !f.ours && !f.force }

// ToTry returns the options in doubt about which HNS should be asked before Put. There are none if Put
// will not write the file.
func (f File) ToTry() Options {
	if f.path == "" || f.Stays() {
		return Options{}
	}
	again := f.force || !f.ours
	return Options{
		LoopbackDSR:   f.doubt.LoopbackDSR && (again || !f.last.Tried.LoopbackDSR),
		EncapOverhead: f.doubt.EncapOverhead && (again || !f.last.Tried.EncapOverhead),
	}
}

// samePath compares paths as the system does: on Windows without regard to case.
func samePath(a, b string) bool {
	return a == b || runtime.GOOS == "windows" && strings.EqualFold(a, b)
}

// Put writes the wanted configuration without the options that are left out, unless somebody else wrote
// or edited the file, also during the trial, and force is false. If the file is "-", it only returns the
// configuration.
func (f File) Put(d Decisions) (Outcome, error) {
	done := Outcome{Path: f.to, Result: "shown"}
	conf, err := Make(f.wanted.Without(d.LeftOut))
	if err != nil {
		return done, err
	}
	done.Conf = conf
	if f.path == "" {
		return done, nil
	}
	if err := f.read(); err != nil {
		return done, err
	}
	switch {
	case !f.exists:
		done.Result = "written"
	case Equal(f.content, conf):
		done.Result = "unchanged"
	default:
		done.Diff = diff(f.content, conf)
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
	return done, f.write(conf, d, done.Result != "unchanged")
}

// write writes the record, and the file if it changes. If we crash in between, the file has either of the
// two contents in the record, and the next run knows that it is ours.
func (f File) write(conf []byte, d Decisions, changes bool) error {
	base, err := Make(f.wanted.Without(Options{LoopbackDSR: true, EncapOverhead: true}))
	if err != nil {
		return err
	}
	if f.given().EncapOverhead {
		d.Tried.EncapOverhead = false // without the flag there is another value, which HNS may refuse
	}
	_, others, err := f.readRecords()
	if err != nil {
		return fmt.Errorf("read what was written before: %w", err) // the record of other files would be lost
	}
	record := records{lastWritten{Path: f.path, Conf: conf, Base: base, Decisions: d}, others}
	if changes {
		first := record
		if f.ours {
			first.Before = f.content
		}
		if err := file.PutJSON(f.record, first); err != nil {
			return fmt.Errorf("record what is being written: %w", err)
		}
		if _, err := file.Put(f.path, conf, 0o644); err != nil {
			return err
		}
	}
	if err := file.PutJSON(f.record, record); err != nil {
		return fmt.Errorf("record what was written: %w", err)
	}
	return nil
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
