package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"flannel/pkg/cni/install"
)

// cniAnswer is the JSON document of install-cni.
type cniAnswer struct {
	Files   []install.Outcome `json:"files"`
	Problem string            `json:"problem,omitempty"`
}

const aboutInstallCNI = `Installs CNI plugins, their configuration, or both, in an init container or before kubelet starts.
Files that are up to date are not touched. Plugins and keys that others, such as a service mesh, added to
the configuration are kept. An installed plugin that is newer than its source, or of another maker, is left
in place unless --replace-plugin is given; one that does not name its maker, such as flannel's own, also
unless only the source supports the CNI version of the configuration.`

// installCNI is the command install-cni. It installs once, or with --watch also
// restores the files until it is stopped. installCNI declares the flags, and what it
// returns runs when they are parsed.
func installCNI(c *call) func(context.Context) int {
	// The defaults are the values of the daemon's flags --cni-conf-from and so on.
	files := c.CNI
	c.flags.StringVar(&files.ConfFrom, "conf-from", files.ConfFrom, "install the configuration list in this `file`")
	c.flags.StringVar(&files.ConfTo, "conf-to", files.ConfTo, "as this `file`, such as "+systemPath("/etc/cni/net.d/10-flannel.conflist"))
	c.flags.StringVar(&files.PluginFrom, "plugin-from", files.PluginFrom, "install this `file`, a plugin, or all plugins in this directory")
	c.flags.StringVar(&files.PluginTo, "plugin-to", files.PluginTo, "as this `file`, such as "+systemPath("/opt/cni/bin/flannel")+", or into this directory; default: where containerd looks, see cni-dirs")
	c.flags.BoolVar(&files.ReplacePlugin, "replace-plugin", files.ReplacePlugin, "replace an installed plugin that is newer, or of another maker")
	watch := c.flags.Bool("watch", false, "keep running: restore the files when they are deleted or damaged, and install changes of --conf-from")
	c.jsonFlag("print one JSON document: files, each with path, result and kept plugins, and problem")
	return func(ctx context.Context) int {
		switch {
		case files.ConfFrom == "" && files.PluginFrom == "":
			return c.reportUsage(errors.New("install-cni: nothing to install; give --conf-from and --conf-to, --plugin-from, or all three"))
		case (files.ConfFrom == "") != (files.ConfTo == ""), files.PluginFrom == "" && files.PluginTo != "":
			return c.reportUsage(errors.New("install-cni: --conf-from requires --conf-to and vice versa, and --plugin-to requires --plugin-from"))
		}
		given := files // keepCNI follows containerd's configuration only if the flags do not set PluginTo
		if err := c.cniDirs().complete(&files, "plugin-to"); err != nil {
			return c.fail(fmt.Errorf("install-cni: %w", err))
		}
		// What is installed here is started as root by the container runtime, and
		// installing needs no network. Without a way to confine this process, as on Windows
		// and some architectures, it continues with the network.
		if c.confine != nil {
			if err := c.confine(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				c.log.Warn("cannot drop network access, continuing with it", "error", err)
			}
		}
		log := c.log
		if !*watch { // the answer lists the same changes
			log = slog.New(slog.DiscardHandler)
		}
		done, err := files.Install(log)
		text := ""
		if !*watch { // else the log has the same
			text = describe(done)
		}
		answer := cniAnswer{append([]install.Outcome{}, done...), problem(err)} // an empty list, not null
		if exit := c.answer(answer, text, err); exit != exitOK || !*watch {
			return exit
		}
		// With --watch the answer is the document of the first installation.
		return c.reportError(c.keepCNI(ctx, given, "plugin-to", log))
	}
}

// describe returns a line for each file.
func describe(files []install.Outcome) string {
	var lines []string
	for _, f := range files {
		line := f.Path + ": " + f.Result
		if f.Reason != "" {
			line += ": " + f.Reason + "; --replace-plugin replaces it"
		}
		if len(f.Kept) > 0 {
			line += ", kept " + strings.Join(f.Kept, ", ")
		}
		if f.ShadowedBy != "" {
			line += "; container runtimes use " + f.ShadowedBy + " instead, which sorts before it"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
