package cniinstall

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

// configuration is a file that others may edit: their parts of it stay.
type configuration struct {
	from, to string
	good     []byte // the file when it could last be used, as far as this process saw it
}

const confMode = 0o644 // of a new file; one that is there keeps its own

func (c *configuration) paths() (from, to string) { return c.from, c.to }

// recordOf is where the source stands that was applied last, so that what is removed from the source can be told from
// what others have added. It is beside the configuration, since it has to live as long. Container runtimes, and others
// who look for configurations, go by the ends .conf, .conflist and .json.
func recordOf(path string) string { return path + ".applied" }

// sources are the texts that a plan is made of.
type sources struct {
	source, record, live []byte // record and live are nil if missing
	mode                 fs.FileMode
	want, base           conf // parsed source and record
}

func (c *configuration) read() (s sources, err error) {
	if s.source, err = os.ReadFile(c.from); err != nil {
		return s, err
	}
	if s.want, err = parseConf(s.source); err != nil {
		return s, fmt.Errorf("%s: %w", c.from, err)
	}
	s.record, _ = os.ReadFile(recordOf(c.to)) // without it nothing is known to be ours but what the source has
	s.base, _ = parseConf(s.record)
	s.live, s.mode, err = readFile(c.to)
	return s, err
}

// readFile returns nil for a file that is missing.
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
	return append([]byte{}, text...), info.Mode().Perm(), nil
}

func (c *configuration) plan(renew bool) (plan, error) {
	s, err := c.read()
	if err != nil {
		return plan{}, fmt.Errorf("install CNI configuration: %w", err)
	}
	p := plan{found: s.live, update: renew}
	if s.live == nil && c.converted(s.want) {
		return p, nil
	}
	var keep []byte // whose foreign parts stay
	p.reason, keep = c.judge(s)
	text := s.source
	if keep != nil {
		text, p.foreign = apply(s, keep)
	}
	switch {
	case p.reason != "":
		p.settle = s.live != nil
	case !equal(text, s.live) && (renew || !bytes.Equal(s.source, s.record)):
		p.reason = "differs from its source"
		fallthrough
	default:
		p.update = true
	}
	if s.live == nil {
		p.attrs = c.renamed()
	}
	if p.foreign != nil {
		p.attrs = append(p.attrs, "kept", strings.Join(p.foreign, ","))
	}
	if p.reason != "" || !bytes.Equal(s.source, s.record) {
		p.write = func() error { return c.write(p, text, s) }
	}
	return p, nil
}

// judge returns what is wrong with the file, and the text of which foreign parts have to stay. A file that cannot be
// parsed counts as what it was before; one that somebody removed does not.
func (c *configuration) judge(s sources) (problem string, keep []byte) {
	if s.live == nil {
		return "missing", nil
	}
	live, err := parseConf(s.live)
	switch {
	case err != nil || (live.plugins == nil) != (s.want.plugins == nil): // or one plugin where a list has to be
		return "unusable", c.good
	case !slices.Contains(live.types(), s.want.main()):
		return "no plugin " + s.want.main(), s.live
	}
	c.good = s.live
	return "", s.live
}

// apply merges the source into a configuration.
func apply(s sources, text []byte) (merged []byte, foreign []string) {
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

// write puts text in place of what the plan found, and nothing else. Between the last look and the rename someone
// else's write can still be lost; those who chain their plugins look again after every change.
func (c *configuration) write(p plan, text []byte, s sources) (err error) {
	now, _, err := readFile(c.to)
	if err == nil && (!bytes.Equal(now, p.found) || (now == nil) != (p.found == nil)) {
		err = errChanged
	}
	switch {
	case err != nil:
	case p.reason == "":
	case p.found == nil:
		if err = file.Create(c.to, text, confMode); errors.Is(err, fs.ErrExist) {
			err = errChanged
		}
	default:
		_, err = file.Put(c.to, text, s.mode)
	}
	if err == nil {
		_, err = file.Put(recordOf(c.to), s.source, confMode)
	}
	if err != nil && !errors.Is(err, errChanged) {
		err = fmt.Errorf("install CNI configuration: %w", err)
	}
	return err
}

// converted reports whether someone has made a list of our single plugin, as those do who chain theirs to it, and
// removed the former file. Runtimes would prefer that one if it came back.
func (c *configuration) converted(want conf) bool {
	if want.plugins != nil || filepath.Ext(c.to) != ".conf" {
		return false
	}
	text, _, err := readFile(c.to + "list")
	list, broken := parseConf(text)
	return err == nil && broken == nil && slices.Contains(list.types(), want.main())
}

// renamed names the files that ours may have become: a network that wants to be the only one renames all others.
func (c *configuration) renamed() (attrs []any) {
	beside, _ := filepath.Glob(c.to + ".*") // the directory may be missing
	beside = slices.DeleteFunc(beside, func(path string) bool { return path == recordOf(c.to) })
	if len(beside) == 0 {
		return nil
	}
	return []any{"beside", strings.Join(beside, ",")}
}
