package main

import (
	"context"
	"errors"
	goflag "flag"
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

const installCNIUsage = `Puts CNI plugins, their configuration, or both in place, for an init container, or before kubelet starts.
A file that is up to date is left alone. In a configuration the plugins and keys of others, such as a service mesh's, stay.

  flanneld install-cni [flags]
`

// installCNI is a command for an init container: it installs once, or with --watch keeps all in place.
func installCNI(ctx context.Context, o options, p process, log *slog.Logger) int {
	c := o.CNI
	var flags goflag.FlagSet
	flags.StringVar(&c.ConfFrom, "conf-from", c.ConfFrom, "install the configuration list that this `file` has")
	flags.StringVar(&c.ConfTo, "conf-to", c.ConfTo, "as this `file`, such as "+systemPath("/etc/cni/net.d/10-flannel.conflist"))
	flags.StringVar(&c.PluginFrom, "plugin-from", c.PluginFrom, "install the plugin that is this `file`, or all that a directory has")
	flags.StringVar(&c.PluginTo, "plugin-to", c.PluginTo, "as this `file`, such as "+systemPath("/opt/cni/bin/flannel")+", or into this directory")
	watch := flags.Bool("watch", false, "go on: restore them when they are deleted or broken, and follow the configuration's source")
	asJSON := flags.Bool("json", false, "print one JSON document: files, each with path, result and kept plugins, and problem")
	if done, code := parseCommand(&flags, installCNIUsage, o, p.stdout, p.stderr); done {
		return code
	}
	switch {
	case c.ConfFrom == "" && c.PluginFrom == "":
		return refuse(o.Args, errors.New("install-cni: nothing to copy; give --conf-from and --conf-to, --plugin-from and --plugin-to, or all four"), p.stdout, p.stderr)
	case (c.ConfFrom == "") != (c.ConfTo == "") || (c.PluginFrom == "") != (c.PluginTo == ""):
		return refuse(o.Args, errors.New("install-cni: --conf-from goes with --conf-to, and --plugin-from with --plugin-to"), p.stdout, p.stderr)
	}
	if err := p.giveUpNetwork(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		log.Warn("could not give up the use of the network, going on with it", "error", err)
	}
	if !*watch { // the answer says what was done
		log = slog.New(slog.DiscardHandler)
	}
	results, err := c.Install(log)
	done, text := describe(results, err)
	if *watch { // the log says it
		text = ""
	}
	if exit := answer(p.stdout, p.stderr, *asJSON, done, text, err); exit != exitOK || !*watch {
		return exit
	}
	return codeOf(c.Keep(ctx, log), p.stderr)
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
