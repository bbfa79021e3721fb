// Package plugin implements the CNI plugin "flannel". It reads the subnet
// file that flanneld writes, derives the configuration of a second plugin from
// it, and calls that plugin, the delegate: bridge on Linux; win-bridge,
// win-overlay, sdnbridge or sdnoverlay on Windows.
//
// ADD saves the delegate's configuration before it calls the delegate. DEL can
// therefore undo an ADD even if the subnet of the node has changed since, or if
// ADD was killed halfway. Saved files have the same names and format as those
// of the upstream flannel plugin (flannel-io/cni-plugin), so each of the two
// plugins can delete pods that the other one added.
//
// The container runtime starts the plugin for every pod, so the program must
// stay small: it imports neither net/http nor a Kubernetes or etcd client.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// Plugin implements the CNI commands. A process runs one of them, on one goroutine, and ends.
// Other processes may run commands for the same pod at the same time (savedFile). All fields
// except Endpoint are required.
type Plugin struct {
	OS     string    // runtime.GOOS; selects the format of the delegate's configuration
	Stderr io.Writer // receives warnings and the delegate's stderr

	// SubnetWait is how long ADD waits for a missing or incomplete subnet
	// file. LockWait is how long ADD and DEL wait for an earlier ADD of the
	// same pod that is still running because the runtime killed only the
	// plugin and not the delegate.
	SubnetWait, LockWait time.Duration

	// Endpoint finds the HNS endpoint of a pod on Windows. It is nil on other
	// systems.
	Endpoint func(ctx context.Context, name string) (Endpoint, error)
}

// Defaults for SubnetWait and LockWait. Kubelet allows two minutes for setting
// up the whole pod sandbox.
const (
	DefaultSubnetWait = 10 * time.Second
	DefaultLockWait   = 20 * time.Second
)

// Funcs returns the command handlers for package skel.
func (p *Plugin) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status}
}

// add implements ADD. It waits for the subnet file, saves the delegate's configuration,
// calls the delegate and prints its result. Package skel, which calls the handlers, prints
// their errors for the runtime.
func (p *Plugin) add(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	subnet, err := awaitSubnet(ctx, c.SubnetFile, p.SubnetWait)
	if err != nil {
		return err
	}
	d, err := newDelegate(c, subnet, p.OS)
	if err != nil {
		return err
	}
	at, err := c.attachment(p.OS, args) // the pod's interface, and where its configuration is saved
	if err != nil {
		return err
	}
	held, err := at.save(ctx, d, p.LockWait)
	if err != nil {
		return cniError(types.ErrIOFailure, "save the configuration of %s: %w", d.Type, err)
	}
	defer func() { held.release() }() // the one that is held then: onDowngrade may replace it
	call := p.newCall("ADD", args)
	call.inherit = held.file // the lock lasts as long as the delegate; nil on Windows
	call.onDowngrade = func(d delegate) error {
		rewritten, err := at.write(held.path, d)
		if err == nil {
			held.release()
			held, call.inherit = rewritten, rewritten.file
		}
		return err
	}
	out, err := call.run(ctx, d)
	if err != nil {
		return explainBridge(err, c, d, subnet.former)
	}
	result, err := decodeResult(d.version(), out) // run may have lowered d's version
	if err != nil {
		return cniError(types.ErrDecodingFailure, "result of %s: %w", d.Type, err)
	}
	return types.PrintResult(result, c.version())
}

// del implements DEL. It calls the delegate with the configuration that ADD saved, and
// removes the saved file. It succeeds if there is none: ADD saves before it calls the
// delegate, so there is nothing to undo.
func (p *Plugin) del(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return err
	}
	held := at.lock(ctx, p.LockWait) // after LockWait without a lock: DEL must not wait forever
	if held == nil {
		return nil
	}
	defer held.release()
	d, err := held.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a concurrent DEL removed it
	} else if err != nil {
		p.warn("%v; deriving the configuration from the current subnet file", err)
		if d, err = p.fallbackDelegate(c); err != nil {
			return err
		}
	} else {
		d.setPrevResult(c)
	}
	if _, err := p.newCall("DEL", args).run(ctx, d); err != nil {
		return err
	}
	if err := held.remove(); err != nil { // not an error: the pod's network is deleted
		p.warn("remove saved configuration: %v", err)
	}
	return nil
}

// placeholderSubnet is used for DEL if both the saved configuration and the
// subnet file are unusable. bridge and host-local find a pod's interface and
// addresses by its ID, but refuse a configuration without a range.
const placeholderSubnet = "FLANNEL_NETWORK=192.0.2.0/24\nFLANNEL_SUBNET=192.0.2.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n"

// fallbackDelegate returns a configuration for DEL if the saved one cannot be
// read.
func (p *Plugin) fallbackDelegate(c *conf) (delegate, error) {
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		if subnet, err = parseSubnet([]byte(placeholderSubnet)); err != nil {
			return delegate{}, err
		}
	}
	return newDelegate(c, subnet, p.OS)
}

// warn writes a warning where the runtime logs it.
func (p *Plugin) warn(format string, args ...any) {
	fmt.Fprintf(p.Stderr, "flannel CNI plugin: "+format+"\n", args...) //nolint:errcheck // there is no other place to report it
}

// newCall returns a call of the delegate for the same pod as that of this
// plugin.
func (p *Plugin) newCall(command string, args *skel.CmdArgs) *call {
	return &call{stderr: p.Stderr, args: invoke.Args{
		Command:       command,
		ContainerID:   args.ContainerID,
		NetNS:         args.Netns,
		PluginArgsStr: args.Args,
		IfName:        args.IfName,
		Path:          args.Path,
	}}
}
