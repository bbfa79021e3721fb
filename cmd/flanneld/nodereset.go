package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"flannel/pkg/cni/conflist"
)

// resetNode is the command node reset: it declares the flags, and what it returns runs when
// they are parsed. flanneld runs other commands in this process.
func resetNode(c *call) func(context.Context) int {
	baseDir := c.baseDirFlag()
	confDir := c.flags.String("cni-conf-dir", "", "`directory` of the CNI configuration; default: that of the last node start")
	dryRun := c.flags.Bool("dry-run", false, "only show what would be removed")
	return c.nodeTask("reset", baseDir, func(ctx context.Context) error {
		files, err := c.nodeFiles(*baseDir, *confDir)
		switch {
		case err != nil:
			return err
		case *dryRun:
			err := c.flanneld(ctx, nil, "cleanup", "--dry-run") // nil: with no further variables
			for _, path := range files {
				if _, missing := os.Lstat(path); missing == nil {
					c.say("would remove " + path)
				}
			}
			return err
		}
		return c.resetNode(ctx, *baseDir, files)
	})
}

// nodeFiles returns the files that node start and the daemon write, whether or not they
// exist.
func (c *call) nodeFiles(baseDir, confDir string) ([]string, error) {
	kept, err := lastSettings(baseDir)
	if err != nil {
		return nil, err
	}
	var last nodeSettings
	if err := last.take(kept); err != nil {
		return nil, err
	}
	if confDir = cmp.Or(confDir, last.CNIConfDir); confDir == "" {
		dirs := c.cniDirs()
		if err := dirs.required("cni-conf-dir"); err != nil {
			return nil, err
		}
		confDir = dirs.Conf
	}
	if confDir, err = fullPath(confDir); err != nil {
		return nil, err
	}
	return []string{filepath.Join(confDir, cniConfName), filepath.Join(baseDir, settingsName), filepath.Join(baseDir, kubeletConfigName),
		c.SubnetFile, conflist.Record(c.SubnetFile),
		// Of scripts of others: a source VIP that is no longer reserved once the network is removed.
		filepath.Join(baseDir, "SourceVip.json"), filepath.Join(baseDir, "SourceVipRequest.json")}, nil
}

// resetNode takes the steps of node reset. Each may run again after one that failed. cleanup
// refuses beside a running daemon, so that all components are stopped before.
func (c *call) resetNode(ctx context.Context, baseDir string, files []string) error {
	if err := c.stopComponents(ctx, baseDir); err != nil {
		return err
	}
	exists, own, err := daemonService()
	switch {
	case err != nil:
		return err
	case exists && !own: // if it runs, cleanup refuses below
		c.leavesService()
	default:
		if err := c.flanneld(ctx, nil, "service", "uninstall"); err != nil {
			return err
		}
	}
	components := c.components(baseDir, nodeSettings{})
	if err := errors.Join(components.RemoveService(kubelet), components.RemoveService(kubeProxy)); err != nil {
		return err
	}
	if err := c.flanneld(ctx, nil, "cleanup"); err != nil {
		return err
	}
	for _, path := range files {
		err := os.Remove(path)
		if err == nil {
			c.say("removed " + path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
