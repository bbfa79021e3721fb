// Package install installs CNI plugins and a CNI configuration where containerd looks for
// them, and restores them when they are deleted or damaged. Other programs (service meshes,
// bandwidth and tuning plugins) may add plugins and keys to the configuration; these are
// kept.
//
// The configuration is merged from three texts, as kubectl apply does: the source
// (what we want), the record (the source that was applied last) and the live
// file. Keys and plugins that are in the record and no longer in the source are
// removed; those that are only in the live file belong to others ("foreign").
//
// Keep compares a file with its source whenever one of them changes:
//
//	live file                        action
//	missing                          write it; after repeated deletions, with growing pauses
//	not parsable, or without the     repair it once it has been unchanged for stableFor, since
//	  plugin that the source needs     another program may be in the middle of writing it: also
//	                                   at the start
//	usable, source has changed       merge the source into it at once
//	usable, source as applied        none, whatever others have edited
//
// A plugin is replaced by its source when it differs, unless its answer to CNI's
// VERSION says that it is newer, or of another maker (identity.reasonToKeep). While the source cannot be started or is too slow, as when memory is short,
// the installed plugin stays.
package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
)

// Files are the paths of the sources and of the installed files. Both paths of a
// pair are set, or none; or ConfFrom alone, whose CNI version the plugins have to support. If
// PluginFrom is a directory, its files are copied into the directory PluginTo; one plugin is
// copied into PluginTo if that ends in a path separator. Files whose names begin with a dot are
// not plugins. An installed plugin that is newer, or of another maker, is left in place unless
// ReplacePlugin is set; one without the name of a maker, such as flannel's own, also unless only
// the source supports the CNI version of the configuration.
type Files struct {
	ConfFrom, ConfTo, PluginFrom, PluginTo string
	ReplacePlugin                          bool
}

// Outcome is what Install did with one file.
type Outcome struct {
	Path   string   `json:"path"`
	Result string   `json:"result"`           // "written", "unchanged" or "left alone"
	Kept   []string `json:"kept,omitempty"`   // types of the plugins in a configuration that others added
	Reason string   `json:"reason,omitempty"` // why the installed plugin was left alone
	// ShadowedBy is the name of the configuration that container runtimes use instead of this one.
	ShadowedBy string `json:"shadowedBy,omitempty"`
}

// target is one file to install: a plugin or a configuration.
type target struct {
	from, to string // paths of the source and of the installed file
	reads    string // another file on which the plan depends; "": none
	// plan compares the file with its source, and changes nothing. If enforce is true, a
	// usable configuration is changed, too, so that it has all keys of the source: by
	// Install, and by Keep until it has succeeded once. One goroutine calls it.
	plan func(enforce bool) (plan, error)
}

// plan says what to do with a file. The zero plan: nothing.
type plan struct {
	reason      string   // why the file is written ("missing", "changed"); empty: it is not, at most the record is
	update      bool     // the source changed, or was not applied since the start; false: this is a repair, with growing pauses
	awaitStable bool     // another program may be writing the file: wait until it stays the same
	found       []byte   // content of the file when the plan was made, of a plugin its digest; nil: it was missing
	attrs       []any    // further attributes for the log
	foreign     []string // types of the plugins that others added
	kept        string   // why another plugin is left in place; empty: none is
	shadowedBy  string   // the configuration that container runtimes use instead of this one; empty: they use this one
	// write carries out the plan; nil: nothing to do. written is true also if the
	// record could not be written afterwards. The error is errChanged if the file no
	// longer has the content found.
	write func() (written bool, err error)
}

// errChanged means that a plan is out of date.
var errChanged = errors.New("the file was changed meanwhile")

// Install installs all files once, for the command install-cni, the plugins first: once a
// configuration exists, the container runtime calls them. If one fails, it still installs
// the others; done has the files that did not fail.
func (f Files) Install(log *slog.Logger) (done []Outcome, err error) {
	targets, err := f.plugins() // none with an error
	if f.ConfFrom != "" && f.ConfTo != "" {
		targets = append(targets, f.conf())
	}
	for _, t := range targets {
		outcome, failed := t.install(log)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		done = append(done, outcome)
	}
	return done, err
}

// install writes one file unless it is as wanted, once.
func (t target) install(log *slog.Logger) (Outcome, error) {
	var pace pacer
	for range 5 { // another program may change the file before the write
		p, err := t.plan(true) // true: enforce
		if err == nil && p.write != nil {
			if delay := pace.delay(time.Now(), p); delay > 0 {
				time.Sleep(delay)
				continue
			}
			_, err = p.write()
		}
		switch {
		case errors.Is(err, errChanged):
			continue
		case errors.Is(err, errNotNow): // pods can use the installed plugin
			return Outcome{Path: t.to, Result: "left alone", Reason: err.Error()}, nil
		case err != nil:
			return Outcome{}, err
		case p.kept != "":
			return Outcome{Path: t.to, Result: "left alone", Reason: p.kept}, nil
		case p.reason == "":
			return Outcome{Path: t.to, Result: "unchanged", Kept: p.foreign, ShadowedBy: p.shadowedBy}, nil
		}
		p.log(log, slog.LevelInfo, t.to)
		return Outcome{Path: t.to, Result: "written", Kept: p.foreign, ShadowedBy: p.shadowedBy}, nil
	}
	return Outcome{}, fmt.Errorf("install %s: %w", t.to, errChanged)
}

// log logs that the plan was carried out.
func (p plan) log(log *slog.Logger, level slog.Level, path string) {
	if p.reason == "" { // only the record was written
		return
	}
	message := "restored CNI file"
	if p.update {
		message = "installed CNI file"
	}
	log.Log(context.Background(), level, message, append([]any{"path", path, "reason", p.reason}, p.attrs...)...)
}

// Keep installs all files, and updates and restores them until ctx ends, for the daemon:
// each on a goroutine of its own. If a source cannot be read or a file cannot be written, it
// retries and logs that once a minute. It returns an error only if files cannot be watched, or
// if it would retry in vain (file.ErrDirGone).
func (f Files) Keep(ctx context.Context, log *slog.Logger) error {
	tasks, ctx := errgroup.WithContext(ctx)
	if f.ConfFrom != "" && f.ConfTo != "" {
		tasks.Go(func() error { return keep(ctx, f.conf(), log) })
	}
	for _, t := range f.awaitPlugins(ctx, log) {
		tasks.Go(func() error { return keep(ctx, t, log) })
	}
	return tasks.Wait()
}
