package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"flannel/pkg/cniinstall"
)

// cniAnswer is what install-cni answers with --json.
type cniAnswer struct {
	Files   []cniFile `json:"files"`
	Problem string    `json:"problem,omitempty"`
}

type cniFile struct {
	Path   string   `json:"path"`
	Result string   `json:"result"`         // "written", "unchanged"
	Kept   []string `json:"kept,omitempty"` // types of other plugins in a configuration
}

const aboutInstallCNI = `Puts CNI plugins, their configuration, or both in place, for an init container, or before kubelet starts.
A file that is up to date is left alone. In a configuration the plugins and keys of others, such as a service mesh's, stay.

  flanneld install-cni [flags]
`

// installCNI is a command for an init container: it installs once, or with --watch keeps all in place.
func installCNI(c *call) func(context.Context) int {
	files := c.CNI
	c.flags.StringVar(&files.ConfFrom, "conf-from", files.ConfFrom, "install the configuration list that this `file` has")
	c.flags.StringVar(&files.ConfTo, "conf-to", files.ConfTo, "as this `file`, such as "+systemPath("/etc/cni/net.d/10-flannel.conflist"))
	c.flags.StringVar(&files.PluginFrom, "plugin-from", files.PluginFrom, "install the plugin that is this `file`, or all that a directory has")
	c.flags.StringVar(&files.PluginTo, "plugin-to", files.PluginTo, "as this `file`, such as "+systemPath("/opt/cni/bin/flannel")+", or into this directory")
	watch := c.flags.Bool("watch", false, "go on: restore them when they are deleted or broken, and follow the configuration's source")
	c.jsonFlag("print one JSON document: files, each with path, result and kept plugins, and problem")
	return func(ctx context.Context) int {
		switch {
		case files.ConfFrom == "" && files.PluginFrom == "":
			return c.refuse(errors.New("install-cni: nothing to copy; give --conf-from and --conf-to, --plugin-from and --plugin-to, or all four"))
		case (files.ConfFrom == "") != (files.ConfTo == "") || (files.PluginFrom == "") != (files.PluginTo == ""):
			return c.refuse(errors.New("install-cni: --conf-from goes with --conf-to, and --plugin-from with --plugin-to"))
		}
		if err := c.giveUpNetwork(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			c.log.Warn("could not give up the use of the network, going on with it", "error", err)
		}
		log := c.log
		if !*watch { // the answer says what was done
			log = slog.New(slog.DiscardHandler)
		}
		results, err := files.Install(log)
		done, text := describe(results, err)
		if *watch { // the log says it
			text = ""
		}
		if exit := c.answer(done, text, err); exit != exitOK || !*watch {
			return exit
		}
		return c.codeOf(files.Keep(ctx, log))
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
