package conflist

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// confFile is a file with its record.
type confFile struct {
	t        *testing.T
	to       string
	record   string
	wanted   Spec
	decision Decisions
}

func newConfFile(t *testing.T) *confFile {
	dir := t.TempDir()
	c := &confFile{t: t, to: filepath.Join(dir, "10-flannel.conf"), record: filepath.Join(dir, "record.json"), wanted: spec("win-overlay", 2)}
	c.wanted.EncapOverhead = 90
	c.decision = Decisions{LeftOut: Options{LoopbackDSR: true}, Tried: Options{LoopbackDSR: true, EncapOverhead: true}}
	return c
}

func (c *confFile) open(doubt Options, force bool) File {
	c.t.Helper()
	f, err := Open(c.to, c.record, c.wanted, doubt, force)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

var both = Options{LoopbackDSR: true, EncapOverhead: true}

func (c *confFile) put(f File, want string) {
	c.t.Helper()
	if done, err := f.Put(c.decision); err != nil || done.Result != want || done.Path != c.to {
		c.t.Errorf("%s of %s, want %s: %v", done.Result, done.Path, want, err)
	}
}

func (c *confFile) write(path string, content []byte) {
	c.t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *confFile) made(s Spec) []byte {
	c.t.Helper()
	conf, err := Make(s)
	if err != nil {
		c.t.Fatal(err)
	}
	return conf
}

// Files at several paths are each ours, whichever was written last. The record of a deleted file is forgotten.
func TestSeveralPaths(t *testing.T) {
	c := newConfFile(t)
	first, second := c.to, c.to+"list"
	c.put(c.open(both, false), "written")
	c.to = second
	c.put(c.open(both, false), "written")
	c.wanted.Cluster = slices.Clone(c.wanted.Cluster)
	c.wanted.Cluster[0] = netip.MustParsePrefix("10.99.0.0/16")
	for _, c.to = range []string{first, second, first} {
		f := c.open(both, false)
		if done, err := f.Put(c.decision); err != nil || done.Result == "differs" {
			t.Errorf("%+v, %v", done, err)
		}
	}
	c.write(first, []byte("{}"))
	if !c.open(both, false).Stays() {
		t.Error("an edited file is overwritten")
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	f := c.open(both, true)
	c.put(f, "overwritten")
	if _, others, err := f.readRecords(); err != nil || len(others) > 0 {
		t.Errorf("the record still has %+v: %v", others, err)
	}
}

// The records of other files stay if they cannot be read, or it is not known whether a file exists.
func TestRecordsOfOthersStay(t *testing.T) {
	c := newConfFile(t)
	unknown := lastWritten{Path: "\x00", Conf: []byte("{}")} // no file has this name, and the error does not say so
	raw, err := json.Marshal(records{unknown, nil})
	if err != nil {
		t.Fatal(err)
	}
	c.write(c.record, raw)
	f := c.open(both, false)
	c.put(f, "written")
	if _, others, err := f.readRecords(); err != nil || len(others) != 1 || others[0].Path != unknown.Path {
		t.Errorf("the record has %+v: %v", others, err)
	}
	if runtime.GOOS == "windows" {
		return // a link needs a privilege
	}
	if err := errors.Join(os.Remove(c.record), os.Symlink(c.record, c.record)); err != nil {
		t.Fatal(err)
	}
	if done, err := c.open(both, true).Put(c.decision); err == nil {
		t.Errorf("a record that cannot be read was replaced: %+v", done)
	}
}

// A crash between record and file, or a lost record, does not make the file somebody else's.
func TestCrash(t *testing.T) {
	c := newConfFile(t)
	old := c.made(c.wanted)
	c.put(c.open(both, false), "written")
	now, err := os.ReadFile(c.to)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.record); err != nil {
		t.Fatal(err)
	}
	f := c.open(both, false)
	if d := f.Decisions(); f.ToTry() != both || d.LeftOut != c.decision.LeftOut {
		t.Errorf("without the record: %+v", d)
	}
	c.decision.LeftOut = Options{}
	c.put(f, "updated")

	c.wanted.MACPrefix = "0E-3B"
	next := c.made(c.wanted)
	base := c.made(c.wanted.Without(both))
	raw, err := json.Marshal(lastWritten{Path: c.to, Conf: next, Before: old, Base: base, Decisions: c.decision})
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{old, next} {
		c.write(c.record, raw)
		c.write(c.to, content)
		if f := c.open(both, false); f.ToTry() != (Options{}) || !f.ours {
			t.Errorf("a crash makes the file somebody else's:\n%s", content)
		}
	}
	c.write(c.to, now)
	c.put(c.open(both, false), "differs")
}

// Without a place for the record, the file stays as it is.
func TestRecordFails(t *testing.T) {
	c := newConfFile(t)
	if err := os.MkdirAll(filepath.Join(c.record, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if done, err := c.open(both, false).Put(c.decision); err == nil {
		t.Errorf("no error: %+v", done)
	}
	if _, err := os.Stat(c.to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was written without a record: %v", err)
	}
}

// An edit during the trial is kept.
func TestEditedDuringTrial(t *testing.T) {
	c := newConfFile(t)
	c.put(c.open(both, false), "written")
	c.wanted.MACPrefix = "0E-3B"
	f := c.open(both, false)
	c.write(c.to, []byte(`{"edited": true}`))
	c.put(f, "differs")
	if text, err := os.ReadFile(c.to); err != nil || string(text) != `{"edited": true}` {
		t.Errorf("an edit is gone: %s, %v", text, err)
	}
}

// Which options are tried.
func TestToTry(t *testing.T) {
	c := newConfFile(t)
	try := func(what string, f File, want Options) {
		t.Helper()
		if got := f.ToTry(); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	try("no file", c.open(both, false), both)
	c.put(c.open(both, false), "written")
	try("tried", c.open(both, false), Options{})
	try("forced", c.open(both, true), both)
	try("forced, and nothing is in doubt", c.open(Options{}, true), Options{})
	c.decision.Tried.LoopbackDSR = false
	c.put(c.open(both, false), "unchanged")
	try("untried", c.open(both, false), Options{LoopbackDSR: true})
	try("only the other option", c.open(Options{EncapOverhead: true}, false), Options{})
	c.decision.Tried.LoopbackDSR = true
	c.put(c.open(both, false), "unchanged")
	c.wanted.MACPrefix = "0E-3B"
	if f := c.open(both, false); f.ToTry() != both || f.Decisions().LeftOut != c.decision.LeftOut {
		t.Errorf("another configuration: %+v", f.Decisions())
	}
	c.write(c.to, []byte("{}"))
	try("edited", c.open(both, false), Options{})
	c.to = "-"
	try("shown", c.open(both, true), Options{})
}

// An option that a flag sets is in the configuration, also in one that is only printed. What a flag says of the overhead says
// nothing of its default.
func TestOptionGiven(t *testing.T) {
	c := newConfFile(t)
	for _, to := range []string{"-", c.to} {
		c.to = to
		f := c.open(Options{LoopbackDSR: true}, false)
		done, err := f.Put(f.Decisions())
		if err != nil || !Equal(done.Conf, c.made(c.wanted)) {
			t.Errorf("to %s: %s, %v", to, done.Conf, err)
		}
	}
	if got, want := c.open(both, false).ToTry(), both; got != want {
		t.Errorf("without the flag: %+v, want %+v", got, want)
	}
	c.write(c.to, []byte("{}"))
	if !c.open(both, false).Stays() || c.open(both, true).Stays() {
		t.Error("an edited file stays, unless it is overwritten")
	}
}

// Where there is a record, an option that somebody took out of the file is an edit.
func TestOptionEdited(t *testing.T) {
	c := newConfFile(t)
	c.decision.LeftOut = Options{}
	c.put(c.open(both, false), "written")
	c.write(c.to, c.made(c.wanted.Without(Options{LoopbackDSR: true})))
	c.put(c.open(both, false), "differs")
	t.Chdir(filepath.Dir(c.to))
	if err := os.Remove(c.to); err != nil {
		t.Fatal(err)
	}
	c.to = "10-flannel.conf"
	c.put(c.open(both, false), "written") // the path is as given
}
