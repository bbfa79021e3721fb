package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"flannel/pkg/cniinstall"
)

// cniAnswer is the JSON document of install-cni.
type cniAnswer struct {
	Files   []cniFile `json:"files"`
	Problem string    `json:"problem,omitempty"`
}

type cniFile struct {
	Path   string   `json:"path"`
	Result string   `json:"result"`         // "written", "unchanged"
	Kept   []string `json:"kept,omitempty"` // types of plugins that others added to a configuration
}

const aboutInstallCNI = `Installs CNI plugins, their configuration, or both, in an init container or before kubelet starts.
Files that are up to date are not touched. Plugins and keys that others, such as a service mesh, added to
the configuration are kept.

  flanneld install-cni [flags]
`

// installCNI is the command install-cni. It installs once, or with --watch also restores the files until it is stopped.
func installCNI(c *call) func(context.Context) int {
	files := c.CNI
	c.flags.StringVar(&files.ConfFrom, "conf-from", files.ConfFrom, "install the configuration list in this `file`")
	c.flags.StringVar(&files.ConfTo, "conf-to", files.ConfTo, "as this `file`, such as "+systemPath("/etc/cni/net.d/10-flannel.conflist"))
	c.flags.StringVar(&files.PluginFrom, "plugin-from", files.PluginFrom, "install this `file`, a plugin, or all plugins in this directory")
	c.flags.StringVar(&files.PluginTo, "plugin-to", files.PluginTo, "as this `file`, such as "+systemPath("/opt/cni/bin/flannel")+", or into this directory")
	watch := c.flags.Bool("watch", false, "keep running: restore the files when they are deleted or damaged, and install changes of --conf-from")
	c.jsonFlag("print one JSON document: files, each with path, result and kept plugins, and problem")
	return func(ctx context.Context) int {
		switch {
		case files.ConfFrom == "" && files.PluginFrom == "":
			return c.reportUsage(errors.New("install-cni: nothing to install; give --conf-from and --conf-to, --plugin-from and --plugin-to, or all four"))
		case (files.ConfFrom == "") != (files.ConfTo == "") || (files.PluginFrom == "") != (files.PluginTo == ""):
			return c.reportUsage(errors.New("install-cni: --conf-from requires --conf-to, and --plugin-from requires --plugin-to, and vice versa"))
		}
		if err := c.giveUpNetwork(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			c.log.Warn("cannot drop network access, continuing with it", "error", err)
		}
		log := c.log
		if !*watch { // the answer lists the same changes
			log = slog.New(slog.DiscardHandler)
		}
		results, err := files.Install(log)
		done, text := describe(results, err)
		if *watch { // the log has the same
			text = ""
		}
		if exit := c.answer(done, text, err); exit != exitOK || !*watch {
			return exit
		}
		return c.reportError(files.Keep(ctx, log))
	}
}

func describe(results []cniinstall.Result, err error) (done cniAnswer, text string) {
	done = cniAnswer{Files: []cniFile{}, Problem: problem(err)}
	var lines []string
	for _, r := range results {
		f := cniFile{Path: r.Path, Result: "unchanged", Kept: r.Foreign}
		if r.Written {
			f.Result = "written"
		}
		line := f.Path + ": " + f.Result
		if len(f.Kept) > 0 {
			line += ", kept " + strings.Join(f.Kept, ", ")
		}
		done.Files, lines = append(done.Files, f), append(lines, line)
	}
	return done, strings.Join(lines, "\n")
}
