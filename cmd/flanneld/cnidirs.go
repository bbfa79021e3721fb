package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"flannel/pkg/cniinstall"
	"flannel/pkg/containerd"
)

const aboutCNIDirs = `Prints the directories in which the container runtime of this node looks for the CNI configuration and the
plugins. They are those of containerd: on Windows, of the configuration that its service was started with;
on Linux, of /etc/containerd/config.toml. If there is no such containerd, they are the usual ones. Other commands take
them as their defaults.`

// cniDirs are where the container runtime looks for CNI. If containerd's directories
// are not known, they are the usual ones.
type cniDirs struct {
	Config string `json:"config,omitempty"` // containerd's file; "": it is not known
	Conf   string `json:"confDir"`
	Bin    string `json:"binDir"` // the first one, into which plugins are installed
	// Problem is why containerd's are not known although there is one, or what is
	// wrong with them.
	Problem string `json:"problem,omitempty"`

	bins []string
	from containerd.CNI
	err  error // containerd's configuration cannot be used
}

func (p process) cniDirs() cniDirs {
	d := cniDirs{Conf: systemPath("/etc/cni/net.d"), Bin: systemPath("/opt/cni/bin")}
	d.bins = []string{d.Bin}
	find := p.containerd
	if find == nil {
		find = containerd.Find
	}
	found, err := find()
	switch {
	case errors.Is(err, containerd.ErrNone):
	case err != nil:
		d.err, d.Problem = err, err.Error()
	default:
		d.Config, d.from = found.Config, found
		d.Conf, d.Bin, d.bins = found.Conf.Dirs[0], found.Bin.Dirs[0], found.Bin.Dirs
		d.Problem = cmp.Or(found.Conf.Missing(), found.Bin.Missing())
	}
	return d
}

// required returns the directories, or an error that names the flag to give instead if
// containerd's cannot be used.
func (d cniDirs) required(flag string) error {
	if d.err == nil {
		return nil
	}
	return fmt.Errorf("%w; or set --%s", d.err, flag)
}

// completeCNIFiles sets where plugins are installed, if they are and it is not set.
// flag is the one that sets it.
func (p process) completeCNIFiles(files *cniinstall.Files, flag string) error {
	if files.PluginFrom == "" || files.PluginTo != "" {
		return nil
	}
	dirs := p.cniDirs()
	if err := dirs.required(flag); err != nil {
		return err
	}
	files.PluginTo = dirs.Bin
	if info, err := os.Stat(files.PluginFrom); err == nil && !info.IsDir() {
		files.PluginTo = filepath.Join(dirs.Bin, filepath.Base(files.PluginFrom))
	}
	return nil
}

// keepCNI keeps the CNI files of the daemon. That containerd's configuration cannot be
// read stops nothing else.
func keepCNI(ctx context.Context, files cniinstall.Files, log *slog.Logger) error {
	if err := (process{}).completeCNIFiles(&files, "cni-plugin-to"); err != nil {
		log.Warn("cannot install the CNI plugins", "cause", causeNoCNIDirs, "error", err)
		files.PluginFrom = ""
	}
	return files.Keep(ctx, log)
}

// causeNoCNIDirs is a cause in the log.
const causeNoCNIDirs = "cni-dirs-unknown"

// showCNIDirs is the command cni-dirs.
func showCNIDirs(c *call) func(context.Context) int {
	c.jsonFlag("print one JSON document: confDir, binDir, config, problem")
	return func(context.Context) int {
		d := c.cniDirs()
		conf, bin := "usual", "usual"
		if d.Config != "" {
			conf, bin = d.from.Conf.Origin(), d.from.Bin.Origin()
		}
		text := fmt.Sprintf("configuration: %s (%s)\nplugins: %s (%s)", d.Conf, conf, d.Bin, bin)
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
