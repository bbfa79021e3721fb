package cniplugin

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// gc deletes the attachments of this network that have a saved configuration and that the runtime does not list, and has
// the delegate collect its own garbage. Not every delegate knows GC, so each is deleted by DEL.
func (p *Plugin) gc(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if c.Valid == nil {
		c.Valid = c.ValidDraft
	}
	if c.Valid == nil {
		return cniError(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments is missing, without which all of them would be garbage")
	}
	files, err := os.ReadDir(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrIOFailure, "saved configurations: %w", err)
	}
	var problems []error
	for _, f := range files {
		if err := p.collect(ctx, c, f.Name(), args); err != nil {
			problems = append(problems, err)
		}
	}
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	d, err := newDelegate(c, subnet, p.OS)
	if err == nil {
		err = p.delegateGC(ctx, c, d, args)
	}
	return errors.Join(append(problems, err)...)
}

// collect deletes the attachment of one saved file if it is garbage. What cannot be read is left: it may be of another
// network.
func (p *Plugin) collect(ctx context.Context, c *conf, name string, args *skel.CmdArgs) error {
	if left, ok := strings.CutSuffix(name, ".tmp"); ok && strings.HasPrefix(name, ".") {
		id, ifName, _ := strings.Cut(left[1:], "@")
		if !c.valid(id, ifName) {
			_ = os.Remove(filepath.Join(c.DataDir, name)) // it stays if it must
		}
		return nil
	}
	id, ifName, ok := parseName(name)
	if !ok {
		return nil
	}
	path := filepath.Join(c.DataDir, name)
	owned, network, err := owner(path)
	if ifName == "" {
		ifName = owned
	}
	if err != nil || network != c.Name || c.valid(id, ifName) {
		return nil
	}
	file, locked := tryLock(path)
	held := &saved{path, file}
	defer held.release()
	if !locked {
		return nil // its ADD is under way
	}
	d, err := held.read()
	if err != nil {
		return nil
	}
	if ifName == "" {
		ifName = "eth0" // of flannel's plugin, which does not save it: what all runtimes of Kubernetes use
	}
	call := p.newCall("DEL", args)
	call.args.ContainerID, call.args.IfName, call.args.NetNS = id, ifName, ""
	if _, err := call.run(ctx, d); err != nil {
		return cniError(types.ErrInternal, "delete %s: %w", id, err)
	}
	if err := held.remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrIOFailure, "remove saved configuration: %w", err)
	}
	return nil
}

// valid reports whether the runtime lists an attachment; one without the interface's name if any of the container is.
func (c *conf) valid(id, ifName string) bool {
	return slices.ContainsFunc(*c.Valid, func(a types.GCAttachment) bool {
		return a.ContainerID == id && (ifName == "" || a.IfName == ifName)
	})
}

// delegateGC calls a delegate that knows GC.
func (p *Plugin) delegateGC(ctx context.Context, c *conf, d delegate, args *skel.CmdArgs) error {
	path, err := invoke.FindInPath(d.Type, filepath.SplitList(args.Path))
	if err != nil {
		return cniError(types.ErrInvalidNetworkConfig, "delegate: %w", err)
	}
	call := p.newCall("GC", args)
	if known, err := call.versions(ctx, path); err != nil || !slices.Contains(known, d.version()) {
		return err
	}
	d.conf.set("cni.dev/valid-attachments", *c.Valid)
	d.conf.set("cni.dev/attachments", *c.Valid)
	_, err = call.run(ctx, d)
	return err
}
