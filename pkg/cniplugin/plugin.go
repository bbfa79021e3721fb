// Package cniplugin is the CNI plugin "flannel". It reads the subnet file that flanneld writes, derives from it the
// configuration of another plugin, the delegate (bridge on Linux; win-bridge, win-overlay, sdnbridge or sdnoverlay on
// Windows), and calls that one.
//
// ADD saves the delegate's configuration before it calls the delegate, so that DEL can undo what ADD did even if the
// node has another subnet by then, and whatever moment of ADD the process was killed in. The saved files have the name
// and the form that flannel's own plugin gives them: either plugin deletes the pods of the other.
//
// The plugin is started for every pod. It must stay small, so it imports neither net/http nor any client.
package cniplugin

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

// Plugin answers the commands of CNI. All fields must be set except for Endpoint.
type Plugin struct {
	OS     string    // runtime.GOOS; it decides on the form of the delegate's configuration
	Stderr io.Writer // warnings, and what the delegate prints there

	// SubnetWait is how long ADD waits for a subnet file that is missing or incomplete, and LockWait how long DEL waits
	// for an ADD of the same pod that outlived its runtime's patience.
	SubnetWait, LockWait time.Duration

	// Endpoint finds the HNS endpoint of a pod on Windows. Elsewhere it is nil.
	Endpoint func(ctx context.Context, name string) (Endpoint, error)
}

// Defaults for the waits. Kubelet gives the whole sandbox two minutes.
const (
	DefaultSubnetWait = 10 * time.Second
	DefaultLockWait   = 20 * time.Second
)

// Funcs are the commands in the form that package skel takes.
func (p *Plugin) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status}
}

// add waits for the subnet file, saves the delegate's configuration, calls the delegate and prints its result.
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
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return err
	}
	held, err := at.save(ctx, d, p.LockWait)
	if err != nil {
		return cniError(types.ErrIOFailure, "save the configuration of %s: %w", d.Type, err)
	}
	defer func() { held.release() }()
	call := p.newCall("ADD", args)
	call.inherit = held.file
	call.downgraded = func(d delegate) error {
		lower, err := at.write(held.path, d)
		if err == nil {
			held.release()
			held, call.inherit = lower, lower.file
		}
		return err
	}
	out, err := call.run(ctx, d)
	if err != nil {
		return err
	}
	result, err := decodeResult(d.version(), out)
	if err != nil {
		return cniError(types.ErrDecodingFailure, "result of %s: %w", d.Type, err)
	}
	return types.PrintResult(result, c.version())
}

// del calls the delegate with what was saved by ADD, and removes that. It succeeds where nothing was saved, because then
// nothing was done.
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
	held := at.lock(ctx, p.LockWait)
	if held == nil {
		return nil
	}
	defer held.release()
	d, err := held.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another DEL was faster
	} else if err != nil {
		p.warn("%v; falling back to the present configuration", err)
		if d, err = p.substitute(c); err != nil {
			return err
		}
	} else {
		d.setPrevResult(c)
	}
	if _, err := p.newCall("DEL", args).run(ctx, d); err != nil {
		return err
	}
	if err := held.remove(); err != nil { // the pod's network is gone, which is what counts
		p.warn("remove saved configuration: %v", err)
	}
	return nil
}

// anySubnet stands for the node's subnets where those are unknown, too: bridge and host-local find what belongs to a pod
// by its ID alone, but insist on a range.
const anySubnet = "FLANNEL_NETWORK=192.0.2.0/24\nFLANNEL_SUBNET=192.0.2.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n"

// substitute makes a configuration for DEL where the saved one cannot be read.
func (p *Plugin) substitute(c *conf) (delegate, error) {
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		if subnet, err = parseSubnet([]byte(anySubnet)); err != nil {
			return delegate{}, err
		}
	}
	return newDelegate(c, subnet, p.OS)
}

func (p *Plugin) warn(format string, args ...any) {
	fmt.Fprintf(p.Stderr, "flannel CNI plugin: "+format+"\n", args...) //nolint:errcheck // there is nowhere else to say it
}

func (p *Plugin) newCall(command string, args *skel.CmdArgs) *call {
	return &call{stderr: p.Stderr, args: invoke.Args{Command: command, ContainerID: args.ContainerID, NetNS: args.Netns,
		PluginArgsStr: args.Args, IfName: args.IfName, Path: args.Path}}
}
