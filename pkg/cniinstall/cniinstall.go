// Package cniinstall puts CNI plugins and a CNI configuration in place and keeps them there, as a good neighbour of
// those who chain their plugins into that configuration (service meshes, bandwidth and tuning plugins).
package cniinstall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// Files are what is to be put in place, and from where. Each pair is given or empty. PluginFrom may be a directory,
// whose files are copied into the directory PluginTo.
type Files struct{ ConfFrom, ConfTo, PluginFrom, PluginTo string }

// Result is what Install has done about one file.
type Result struct {
	Path    string
	Written bool
	Foreign []string // types of the plugins in a configuration that are not ours and were kept
}

// target is one file that is kept in place.
type target interface {
	paths() (from, to string)
	// plan compares the file with what it should be. With renew our own parts are set even if the file can be used.
	plan(renew bool) (plan, error)
}

// plan is what has to be done about a file; nothing if reason is empty.
type plan struct {
	reason  string // for people: "missing", "changed"
	update  bool   // by our own will: the source has changed. Else it is a repair
	settle  bool   // someone may be in the middle of writing the file
	found   []byte // what the plan was made for
	attrs   []any  // further attributes for the log
	foreign []string
	write   func() error // errChanged if the file is no longer what the plan was made for
}

// errChanged means that a plan is out of date.
var errChanged = errors.New("the file was changed meanwhile")

// targets lists plugins first: a configuration makes the runtime call them.
func (f Files) targets() (all []target, err error) {
	if info, missing := os.Stat(f.PluginFrom); f.PluginFrom != "" && missing == nil && info.IsDir() {
		files, err := os.ReadDir(f.PluginFrom)
		if err != nil {
			return nil, fmt.Errorf("install CNI plugins: %w", err)
		}
		for _, e := range files {
			if e.Type().IsRegular() {
				all = append(all, plugin{filepath.Join(f.PluginFrom, e.Name()), filepath.Join(f.PluginTo, e.Name())})
			}
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("install CNI plugins: there is none in %s", f.PluginFrom)
		}
	} else if f.PluginFrom != "" {
		all = append(all, plugin{f.PluginFrom, f.PluginTo})
	}
	if f.ConfFrom != "" {
		all = append(all, &configuration{from: f.ConfFrom, to: f.ConfTo})
	}
	return all, nil
}

// Install puts all files in place once. A file that fails does not keep the others from being installed: the results
// are those of the others.
func (f Files) Install(log *slog.Logger) (done []Result, err error) {
	targets, err := f.targets()
	for _, t := range targets {
		r, failed := install(t, log)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		done = append(done, r)
	}
	return done, err
}

func install(t target, log *slog.Logger) (r Result, err error) {
	_, r.Path = t.paths()
	for range 5 { // more often than anybody else writes the file by chance
		p, err := t.plan(true)
		if err != nil {
			return r, err
		}
		r.Foreign = p.foreign
		if p.write == nil {
			return r, nil
		}
		if err = p.write(); err == nil {
			r.Written = p.reason != ""
			p.log(log, slog.LevelInfo, r.Path)
			return r, nil
		} else if !errors.Is(err, errChanged) {
			return r, err
		}
	}
	return r, fmt.Errorf("install %s: %w", r.Path, errChanged)
}

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

// Keep installs all files and keeps them in place until ctx ends. A file that cannot be written is logged once a
// minute and tried again.
func (f Files) Keep(ctx context.Context, log *slog.Logger) error {
	targets, err := f.targets()
	if err != nil {
		return err
	}
	tasks, ctx := errgroup.WithContext(ctx)
	for _, t := range targets {
		tasks.Go(func() error { return keep(ctx, t, log) })
	}
	return tasks.Wait()
}

const (
	retryAfter = 5 * time.Second // a failed write
	warnEvery  = time.Minute
)
