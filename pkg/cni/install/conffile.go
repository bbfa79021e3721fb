package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"flannel/pkg/file"
)

// confFile is a CNI configuration that other programs may edit, too, such as those
// that add their plugin to the list. The goroutine that keeps the file (keep) calls
// plan, and the plan's write. Three texts decide:
//
//	source   from: what the operator wants
//	record   recordOf(to): the source when it was applied last. A part of the file that the
//	         record has is ours, and any other is foreign, and kept
//	live     to: what is installed
type confFile struct {
	from, to   string
	lastUsable []byte // last usable content of the file that this process saw; nil: none
}

// conf returns the target for the CNI configuration.
func (f Files) conf() target {
	return target{f.ConfFrom, f.ConfTo, "", (&confFile{from: f.ConfFrom, to: f.ConfTo}).plan}
}

const confMode = 0o644 // of a new file; an existing file keeps its mode

// recordOf is the path of the record, a copy of the source that was applied last.
// It is in the directory of the configuration because both must be kept or lost
// together. Container runtimes ignore it: they read only files named *.conf,
// *.conflist or *.json.
func recordOf(path string) string { return path + ".applied" }

// sources are the texts that a plan is made from.
type sources struct {
	source, record, live []byte      // record and live are nil if the file is missing
	mode                 fs.FileMode // of the live file, which a write keeps
	want, base           conf        // parsed source and record; base is zero without a usable record: then nothing is removed
}

// read reads the three texts that are merged. That the record is missing or damaged, or
// that the live file is missing, is no error.
func (c *confFile) read() (s sources, err error) {
	if s.source, err = os.ReadFile(c.from); err != nil {
		return s, err
	}
	if s.want, err = parseConf(s.source); err != nil {
		return s, fmt.Errorf("%s is not a CNI configuration: %w", c.from, err)
	}
	s.record, _ = os.ReadFile(recordOf(c.to)) // without it, only what the source has is known to be ours
	s.base, _ = parseConf(s.record)           // zero with an error
	s.live, s.mode, err = readFile(c.to)
	return s, err
}

// readFile returns a nil text for a file that is missing, and never for another.
func readFile(path string) (text []byte, mode fs.FileMode, err error) {
	info, err := os.Stat(path)
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, confMode, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return text, info.Mode().Perm(), nil
}

// plan implements target.plan. enforce is true in the first pass of the process that keeps
// the file, and for install-cni: keys that somebody has changed get the source's value. A
// plan is a repair unless update is set. A plan with awaitStable is carried out when the file
// has stayed the same for half a second (pacer).
func (c *confFile) plan(enforce bool) (plan, error) {
	s, err := c.read()
	if err != nil {
		return plan{}, fmt.Errorf("install CNI configuration: %w", err)
	}
	// update: of a missing or unusable file; below, true for a usable one
	p := plan{found: s.live, update: enforce, shadowedBy: c.shadowedBy(s.want)}
	if s.live == nil && c.convertedToList(s.want) { // not missing: nothing to do
		return p, nil
	}
	var base []byte // the text that the source is merged into; nil: none
	if p.reason, base = c.validate(s); p.reason == "" {
		c.lastUsable = s.live
	}
	text := s.source // what is written
	if base != nil {
		text, p.foreign = mergeSource(s, base)
	}
	if p.reason != "" {
		p.awaitStable = s.live != nil // it is broken, perhaps because it is being written
	} else { // a usable file is never repaired, only updated
		p.update = true
		if !equal(text, s.live) && (enforce || !bytes.Equal(s.source, s.record)) {
			p.reason = "differs from its source"
		}
	}
	if s.live == nil {
		p.attrs = c.renamedCopies()
	}
	if p.foreign != nil {
		p.attrs = append(p.attrs, "kept", strings.Join(p.foreign, ","))
	}
	if p.reason != "" || !bytes.Equal(s.source, s.record) { // else neither file nor record changes
		p.write = func() (bool, error) { return c.write(p, text, s) }
	}
	return p, nil
}

// validate returns the problem of the live file ("" if it is usable), and the text
// whose foreign parts must be kept. If the file cannot be parsed, that is its last
// usable content; if it was deleted, nothing is kept.
func (c *confFile) validate(s sources) (problem string, base []byte) {
	if s.live == nil {
		return "missing", nil
	}
	live, err := parseConf(s.live)
	switch {
	case err != nil || (live.plugins == nil) != (s.want.plugins == nil): // or one has a list, and one a single plugin
		return "unusable", c.lastUsable
	case !slices.Contains(live.types(), s.want.requiredType()): // the rest of it stays
		return "no plugin " + s.want.requiredType(), s.live
	}
	return "", s.live
}

// mergeSource merges the source into the text of a configuration, and returns the
// types of its foreign plugins. It returns text itself if nothing changes.
func mergeSource(s sources, text []byte) (merged []byte, foreign []string) {
	live, err := parseConf(text)
	if err != nil {
		return s.source, nil
	}
	all, foreign := merge(s.base, s.want, live)
	if merged, err = all.encode(); err != nil || equal(merged, text) {
		return text, foreign
	}
	return merged, foreign
}

// write replaces the content that the plan found by text, and then writes the
// record. It fails with errChanged if the file has another content now. A write of
// another program between that check and the rename is lost. Programs that add
// their plugin restore it, since they watch the file, too.
func (c *confFile) write(p plan, text []byte, s sources) (written bool, err error) {
	live, _, err := readFile(c.to)
	if err == nil && (!bytes.Equal(live, p.found) || (live == nil) != (p.found == nil)) {
		err = errChanged
	}
	switch {
	case err != nil: // changed, or not readable
	case p.reason == "": // only the record
	case p.found == nil:
		if err = file.Create(c.to, text, confMode); errors.Is(err, fs.ErrExist) { // created since
			err = errChanged
		}
	default:
		_, err = file.Put(c.to, text, s.mode) // readers never see a part of it
	}
	written = err == nil && p.reason != ""
	if err == nil {
		_, err = file.Put(recordOf(c.to), s.source, confMode)
	}
	if err != nil && !errors.Is(err, errChanged) {
		err = fmt.Errorf("install CNI configuration: %w", err)
	}
	return written, err
}

// convertedToList reports whether another program replaced our file *.conf, which
// has a single plugin, by a *.conflist that also has its own plugin. Then ours must
// not be restored: container runtimes would prefer it to the list.
func (c *confFile) convertedToList(want conf) bool {
	if want.plugins != nil || filepath.Ext(c.to) != ".conf" {
		return false
	}
	text, _, err := readFile(c.to + "list")
	list, broken := parseConf(text)
	return err == nil && broken == nil && slices.Contains(list.types(), want.requiredType())
}

// causeShadowed is a value of the attribute cause in the log.
const causeShadowed = "conf-shadowed"

// shadowedBy returns the name of the configuration that container runtimes use for pods
// instead of ours: the first one by name, if it sorts before ours and does not lead to it
// (leadsTo); "": there is none. Those that cannot be read or parsed do not count: CRI-O
// ignores them, and with containerd the node is not ready, with a message that names the file.
func (c *confFile) shadowedBy(want conf) string {
	dir, own := filepath.Split(c.to)
	entries, _ := os.ReadDir(dir) // sorted by bytes, as runtimes do; some or none after an error
	for _, e := range entries {
		if e.Name() >= own {
			break
		}
		if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if _, err := parseConf(text); err != nil {
			continue
		}
		if leadsTo(text, mainPlugin, want.text("name"), own) {
			break
		}
		return e.Name()
	}
	return ""
}

// leadsTo reports whether a configuration has one of the names as a string, or at the end of
// a path. Then pods probably get flannel's network by it: better no warning than a wrong one.
// Cilium and Istio copy flannel's plugins into a file of their own, and the file of Multus
// (00-multus.conf) has flannel's plugins or names their file or network.
func leadsTo(text []byte, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return bytes.Contains(text, []byte(`"`+name+`"`)) || bytes.Contains(text, []byte(`/`+name+`"`))
	})
}

// renamedCopies returns a log attribute with the files that ours may have been
// renamed to: some CNI networks rename the configurations of all others.
func (c *confFile) renamedCopies() (attrs []any) {
	beside, _ := filepath.Glob(c.to + ".*") // fails only for a path that is no valid pattern
	beside = slices.DeleteFunc(beside, func(path string) bool { return path == recordOf(c.to) })
	if len(beside) == 0 {
		return nil
	}
	return []any{"beside", strings.Join(beside, ",")}
}
