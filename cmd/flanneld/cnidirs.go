package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/pkg/cni/install"
	"flannel/pkg/file"
	"flannel/pkg/reconcile"
)

const aboutCNIDirs = `Prints the directories in which the container runtime of this node looks for the CNI configuration and the
plugins. They are those of containerd: on Windows, of the configuration that its service was started with;
on Linux, of /etc/containerd/config.toml. If there is no such containerd, as in a container, the usual ones are
assumed, and the output says so. Other commands take them as their defaults.`

// cniDirs are where the container runtime looks for CNI. If containerd's directories
// are not known, they are the usual ones.
type cniDirs struct {
	Config string `json:"config,omitempty"` // containerd's file; "": it is not known
	Conf   string `json:"confDir"`
	Bin    string `json:"binDir"` // the first one, into which plugins are installed
	// Problem is why containerd's are not known although there is one, or what is
	// wrong with them.
	Problem string `json:"problem,omitempty"`

	none error    // why no containerd was found: the directories are assumed
	bins []string // all directories of plugins, in the order in which containerd searches them; Bin is the first
	// from is what FindContainerd has returned, or the zero value with an error, apart from two
	// fields: Sources, the files on which the directories depend, and LookAgain, the time after
	// which they may be others although no file has changed (on Windows, where the registry
	// names the file; 0: never).
	from install.ContainerdCNI
	err  error // containerd's configuration cannot be used; nil also without containerd
}

// cniDirs reads containerd's configuration, anew with each call.
func (p process) cniDirs() cniDirs {
	d := cniDirs{Conf: systemPath("/etc/cni/net.d"), Bin: systemPath("/opt/cni/bin")}
	d.bins = []string{d.Bin}
	find := p.containerd
	if find == nil {
		find = install.FindContainerd
	}
	found, err := find()
	switch {
	case errors.Is(err, install.ErrNoContainerd):
		d.from, d.none = found, err
	case err != nil:
		d.from, d.err, d.Problem = found, err, err.Error()
	default:
		d.Config, d.from = found.Config, found
		d.Conf, d.Bin, d.bins = found.Conf.Dirs[0], found.Bin.Dirs[0], found.Bin.Dirs // without an error, each has one at least
		d.Problem = cmp.Or(found.Conf.Missing(), found.Bin.Missing())                 // "": all is well; a missing directory is used, too
	}
	return d
}

// required returns an error that names the flag to give instead if containerd's
// directories cannot be used.
func (d cniDirs) required(flag string) error {
	if d.err == nil {
		return nil
	}
	return fmt.Errorf("%w; or set --%s", d.err, flag)
}

// complete sets files.PluginTo, the directory where plugins are installed, if there are plugins
// to install and the flag with this name has not set it. The error names the flag.
func (d cniDirs) complete(files *install.Files, flag string) error {
	if files.PluginFrom == "" || files.PluginTo != "" {
		return nil
	}
	if err := d.required(flag); err != nil {
		return err
	}
	files.PluginTo = d.Bin + string(filepath.Separator) // a directory also for one plugin
	return nil
}

// keepCNI keeps CNI files until ctx ends: a task of the daemon, and install-cni --watch, call
// it. flag is the name of the one that sets where plugins are installed. Without this flag,
// keepCNI installs them where containerd's configuration says. While that cannot be read, the
// other files are kept even so. Without files it returns at once, and with the error of install.Files.Keep.
func (p process) keepCNI(ctx context.Context, files install.Files, flag string, log *slog.Logger) error {
	if files.PluginFrom == "" || files.PluginTo != "" {
		return files.Keep(ctx, log)
	}
	tasks, ctx := errgroup.WithContext(ctx)
	plugins := install.Files{ConfFrom: files.ConfFrom, PluginFrom: files.PluginFrom, ReplacePlugin: files.ReplacePlugin}
	files.PluginFrom = ""
	tasks.Go(func() error { return p.keepPlugins(ctx, plugins, flag, log) })
	tasks.Go(func() error { return files.Keep(ctx, log) })
	return tasks.Wait()
}

// keepPlugins keeps the plugins in the directory that containerd's configuration names:
//
//	configuration            action
//	cannot be used           log why, once for each reason; keep the plugins where they are, if
//	                           they were installed already
//	names another directory  keep them there from now on, leave those in the former directory
//	names the same one       none
//
// containerd may be installed, or its configuration completed, after the daemon has
// started. plugins has no PluginTo, as nothing is kept yet. keepPlugins returns nil when ctx
// ends, and an error if files cannot be watched, or that of install.Files.Keep.
func (p process) keepPlugins(ctx context.Context, plugins install.Files, flag string, log *slog.Logger) error {
	next, err := p.awaitPluginDir(ctx, plugins, flag, log)
	for err == nil && ctx.Err() == nil {
		// In a round, one task keeps the plugins in one directory. The other task waits for
		// another directory, sets next, and ends the round.
		kept := next
		round, end := context.WithCancel(ctx)
		tasks, round := errgroup.WithContext(round)
		tasks.Go(func() (err error) {
			defer end()
			next, err = p.awaitPluginDir(round, kept, flag, log)
			return err
		})
		tasks.Go(func() error { return kept.Keep(round, log) })
		err = tasks.Wait()
		end()
	}
	return err
}

// awaitPluginDir waits until the plugins are to be installed elsewhere than in
// kept.PluginTo ("": until it is known where), and returns kept with the new PluginTo; the
// same kept if ctx ends. The error is that of watching files.
func (p process) awaitPluginDir(ctx context.Context, kept install.Files, flag string, log *slog.Logger) (install.Files, error) {
	reported := ""
	for {
		next := kept
		next.PluginTo = ""
		dirs, changes, endWatch, err := p.watchCNIDirs(ctx)
		if err != nil {
			return kept, err
		}
		switch err := dirs.complete(&next, flag); {
		case err == nil && next != kept:
			endWatch()
			return next, nil
		case err == nil:
			reported = ""
		case err.Error() != reported:
			reported = err.Error()
			log.Warn("cannot find out where to install the CNI plugins", "cause", causeNoCNIDirs, "installed_in", kept.PluginTo, "error", err)
		}
		var again time.Time // zero: not before a file changes
		if after := dirs.from.LookAgain; after > 0 {
			again = reconcile.OnBeat(after) // within that time, when this process wakes anyway
		}
		reconcile.Wait(ctx, again, changes)
		endWatch()
		if ctx.Err() != nil {
			return kept, nil
		}
	}
}

// watchCNIDirs returns the directories, and a channel that receives a value when their Sources
// have changed, until endWatch is called or ctx ends. The caller calls endWatch, except after
// an error, with which it is nil.
func (p process) watchCNIDirs(ctx context.Context) (dirs cniDirs, changes <-chan struct{}, endWatch context.CancelFunc, err error) {
	for {
		sources := p.cniDirs().from.Sources
		watching, end := context.WithCancel(ctx)
		if changes, err = file.Watch(watching, sources...); err != nil {
			end()
			return dirs, nil, nil, err
		}
		// Read again: the files may have changed before they were watched.
		if dirs = p.cniDirs(); slices.Equal(dirs.from.Sources, sources) {
			return dirs, changes, end, nil
		}
		end()
	}
}

// causeNoCNIDirs is a value of the attribute cause in the log.
const causeNoCNIDirs = "cni-dirs-unknown"

// showCNIDirs is the command cni-dirs: it declares the flags, and what it returns runs when
// they are parsed.
func showCNIDirs(c *call) func(context.Context) int {
	c.jsonFlag("print one JSON document: confDir, binDir, config (without it, they are assumed), problem")
	return func(context.Context) int {
		d := c.cniDirs()
		conf, bin := "assumed", "assumed"
		if d.Config != "" {
			conf, bin = d.from.Conf.Origin(), d.from.Bin.Origin()
		}
		text := fmt.Sprintf("configuration: %s (%s)\nplugins: %s (%s)", d.Conf, conf, d.Bin, bin)
		if d.none != nil {
			text += "\n" + d.none.Error()
		}
		if d.err == nil && d.Problem != "" {
			text += "\n" + d.Problem
		}
		err := d.err
		if err != nil {
			err = fmt.Errorf("cni-dirs: %w", err)
		}
		return c.answer(d, text, err)
	}
}
