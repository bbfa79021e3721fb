package plugin

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

// gc implements GC. It deletes each attachment (a pod's interface, see saved.go) of this
// network that has a saved configuration and is not in the runtime's list of valid
// attachments: a DEL of it was lost. It calls the delegate's DEL
// for each, because not every delegate supports GC. Then it calls the delegate's
// GC if there is one.
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
		return cniError(types.ErrInvalidNetworkConfig, "GC requires cni.dev/valid-attachments")
	}
	files, err := os.ReadDir(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrIOFailure, "list saved configurations: %w", err)
	}
	var problems []error
	for _, f := range files {
		if err := p.collectFile(ctx, c, f.Name(), args); err != nil {
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

// collectFile deletes the attachment that a file in the data directory belongs to
// if that is one of this network and the runtime does not list it. Files of other
// networks are kept: networks may share the directory, and the runtime's list has
// only the attachments of this one. Unreadable files are kept, because they may
// belong to another network.
func (p *Plugin) collectFile(ctx context.Context, c *conf, name string, args *skel.CmdArgs) error {
	path := filepath.Join(c.DataDir, name)
	// A temporary file, ".ID@INTERFACE@CHECKSUM.tmp", of an ADD that may have been killed.
	if base, ok := strings.CutSuffix(name, tempSuffix(c.Name)); ok && strings.HasPrefix(name, ".") {
		id, ifName, _ := strings.Cut(base[1:], "@")
		if !c.isValid(id, ifName) {
			_ = os.Remove(path) // harmless if it stays
		}
		return nil
	}
	id, ifName, ok := parseName(name) // "ID" or "ID@INTERFACE"; not ok: a temporary file of another network
	if !ok {
		return nil
	}
	savedIfName, network, err := readOwner(path)
	if ifName == "" {
		ifName = savedIfName
	}
	if err != nil || network != c.Name || c.isValid(id, ifName) {
		return nil
	}
	file, locked := tryLock(path) // true with a nil file if that is gone: read below fails then
	held := &savedFile{path, file}
	defer held.release()
	if !locked {
		return nil // its ADD is still running
	}
	d, err := held.read()
	if err != nil || d.conf.text("name") != c.Name {
		return nil // removed, or replaced by an ADD of another network, before it was locked
	}
	if ifName == "" {
		// The upstream plugin does not save the interface name. Kubernetes
		// runtimes always use eth0.
		ifName = "eth0"
	}
	call := p.newCall("DEL", args) // has a copy of the args
	call.args.ContainerID, call.args.IfName, call.args.NetNS = id, ifName, ""
	if _, err := call.run(ctx, d); err != nil {
		return cniError(types.ErrInternal, "delete %s: %w", id, err)
	}
	if err := held.remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrIOFailure, "remove saved configuration: %w", err)
	}
	return nil
}

// isValid reports whether an attachment is in the runtime's list. If ifName is
// "", any interface of the container counts.
func (c *conf) isValid(id, ifName string) bool {
	return slices.ContainsFunc(c.Valid, func(a types.GCAttachment) bool {
		return a.ContainerID == id && (ifName == "" || a.IfName == ifName)
	})
}

// delegateGC calls the delegate's GC if the delegate supports it.
func (p *Plugin) delegateGC(ctx context.Context, c *conf, d delegate, args *skel.CmdArgs) error {
	path, err := invoke.FindInPath(d.Type, filepath.SplitList(args.Path))
	if err != nil {
		return cniError(types.ErrInvalidNetworkConfig, "delegate: %w", err)
	}
	call := p.newCall("GC", args)
	if supported, err := call.versions(ctx, path); err != nil || !slices.Contains(supported, d.version()) {
		return err
	}
	d.conf.set("cni.dev/valid-attachments", c.Valid)
	d.conf.set("cni.dev/attachments", c.Valid)
	_, err = call.run(ctx, d)
	return err
}
