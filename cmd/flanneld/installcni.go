package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/pkg/file"
)

// cniOptions are the files that the container runtime needs; an empty pair is not ours to keep.
type cniOptions struct{ ConfFrom, ConfTo, PluginFrom, PluginTo string }

// copies are what is to be copied, plugins first: a configuration makes the runtime call them. A directory stands for
// the files in it, which another directory shall have: Windows needs several plugins.
func (o cniOptions) copies() (all []cniCopy, err error) {
	if info, missing := os.Stat(o.PluginFrom); o.PluginFrom != "" && missing == nil && info.IsDir() {
		files, err := os.ReadDir(o.PluginFrom)
		if err != nil {
			return nil, fmt.Errorf("install the CNI plugins: %w", err)
		}
		for _, f := range files {
			if f.Type().IsRegular() {
				all = append(all, cniCopy{"CNI plugin", filepath.Join(o.PluginFrom, f.Name()), filepath.Join(o.PluginTo, f.Name()), 0o755})
			}
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("install the CNI plugins: there is none in %s", o.PluginFrom)
		}
	} else if o.PluginFrom != "" {
		all = append(all, cniCopy{"CNI plugin", o.PluginFrom, o.PluginTo, 0o755})
	}
	if o.ConfFrom != "" {
		all = append(all, cniCopy{"CNI configuration", o.ConfFrom, o.ConfTo, 0o644})
	}
	return all, nil
}

type cniCopy struct {
	what, from, to string
	mode           os.FileMode
}

func (c cniCopy) do(log *slog.Logger) (changed bool, err error) {
	if changed, err = file.Copy(c.from, c.to, c.mode); err != nil {
		err = fmt.Errorf("install the %s: %w", c.what, err)
	}
	if changed {
		log.Info("installed the "+c.what, "path", c.to)
	}
	return changed, err
}

// copied is what install-cni answers with --json.
type copied struct {
	Files   []copiedFile `json:"files"`
	Problem string       `json:"problem,omitempty"`
}

type copiedFile struct {
	Path   string `json:"path"`
	Result string `json:"result"` // "written", "unchanged"
}

const installCNIUsage = `Copies CNI plugins, their configuration, or both, for an init container, or before kubelet starts. A file
that is there and says the same is left alone.

  flanneld install-cni [flags]
`

// installCNI is a command for an init container: it copies once, or with --watch keeps all in place.
func installCNI(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	c := o.CNI
	var flags goflag.FlagSet
	flags.StringVar(&c.ConfFrom, "conf-from", c.ConfFrom, "copy the configuration list from this `file`")
	flags.StringVar(&c.ConfTo, "conf-to", c.ConfTo, "to this `file`, such as "+systemPath("/etc/cni/net.d/10-flannel.conflist"))
	flags.StringVar(&c.PluginFrom, "plugin-from", c.PluginFrom, "copy the plugin from this `file`, or all that a directory has")
	flags.StringVar(&c.PluginTo, "plugin-to", c.PluginTo, "to this `file`, such as "+systemPath("/opt/cni/bin/flannel")+", or directory")
	watch := flags.Bool("watch", false, "go on, and put them back when another hand deletes or changes them")
	asJSON := flags.Bool("json", false, "print one JSON document: files, each with path and result, and problem")
	if done, code := parseCommand(&flags, installCNIUsage, o, stdout, stderr); done {
		return code
	}
	switch {
	case c.ConfFrom == "" && c.PluginFrom == "":
		return refuse(o.Args, errors.New("install-cni: nothing to copy; give --conf-from and --conf-to, --plugin-from and --plugin-to, or all four"), stdout, stderr)
	case (c.ConfFrom == "") != (c.ConfTo == "") || (c.PluginFrom == "") != (c.PluginTo == ""):
		return refuse(o.Args, errors.New("install-cni: --conf-from goes with --conf-to, and --plugin-from with --plugin-to"), stdout, stderr)
	}
	if !*watch { // what goes on tells by the log alone
		log = slog.New(slog.DiscardHandler)
	}
	done, text, err := c.install(log)
	if *watch {
		text = ""
	}
	if exit := answer(stdout, stderr, *asJSON, done, text, err); exit != exitOK || !*watch {
		return exit
	}
	return codeOf(keepCNI(ctx, c, log), stderr)
}

// install copies everything once; one file that cannot be copied keeps no other from it.
func (o cniOptions) install(log *slog.Logger) (done copied, text string, err error) {
	copies, err := o.copies()
	var lines []string
	for _, one := range copies {
		changed, failed := one.do(log)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		f := copiedFile{one.to, "unchanged"}
		if changed {
			f.Result = "written"
		}
		done.Files = append(done.Files, f)
		lines = append(lines, f.Path+": "+f.Result)
	}
	done.Files, done.Problem = append([]copiedFile{}, done.Files...), problem(err)
	return done, strings.Join(lines, "\n"), err
}

// keepCNI keeps the files in place until ctx ends. What cannot be written is no reason to end: it is said once a
// minute, and tried again.
func keepCNI(ctx context.Context, o cniOptions, log *slog.Logger) error {
	copies, err := o.copies()
	if err != nil {
		return err
	}
	tasks, ctx := errgroup.WithContext(ctx)
	for _, one := range copies {
		tasks.Go(func() error { return one.keep(ctx, log) })
	}
	return tasks.Wait()
}

func (c cniCopy) keep(ctx context.Context, log *slog.Logger) error {
	source, err := file.Watch(ctx, c.from)
	if err != nil {
		return err
	}
	target, err := file.Watch(ctx, c.to)
	if err != nil {
		return err
	}
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	said := time.Time{}
	for {
		var again <-chan time.Time
		if _, err := c.do(log); err != nil {
			again = retry.C
			if time.Since(said) > time.Minute {
				log.Warn("cannot keep a file in place; trying again", "error", err)
				said = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-source:
		case <-target:
		case <-again:
		}
	}
}
