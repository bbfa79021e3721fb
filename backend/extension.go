package backend

import (
	"encoding/json"
	"fmt"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// extension is the extension backend: commands of the operator connect the nodes. The
// commands are in the network configuration: PreStartupCommand and PostStartupCommand,
// which run at the start, SubnetAddCommand and SubnetRemoveCommand, which run for a peer.
// Package pkg/dataplane/extension runs them, and has their contract. This file only passes
// them on, as a device and as paths.
type extension struct {
	plain
	commands dataplane.Commands // as configured: V4 and V6, this node's subnets, are set by Devices
}

// extensionDevice is the name in dataplane.Links under which the commands' output is found.
const extensionDevice = "extension"

// parseExtension implements Kind.Parse, on every system. The Maker has no warnings.
func parseExtension(o *conf.Object, _ string) Maker {
	commands := dataplane.Commands{
		PreStartup: o.String("PreStartupCommand", ""), PostStartup: o.String("PostStartupCommand", ""),
		SubnetAdd: o.String("SubnetAddCommand", ""), SubnetRemove: o.String("SubnetRemoveCommand", ""),
	}
	if strings.TrimSpace(commands.SubnetAdd) == "" && strings.TrimSpace(commands.PostStartup) == "" { // the latter may connect all nodes at once
		o.Problem("SubnetAddCommand", "is missing, and so is PostStartupCommand: nothing would connect the nodes; set one of them, or use alloc")
	}
	if o.Has("ShutdownCommand") {
		o.Ignore("ShutdownCommand")
		o.Warn("ShutdownCommand", "is never run, as with flannel: the network stays as it is when flanneld stops")
	}
	return func(n Node) (Backend, []string, error) {
		if low := dataplane.MinMTU(n.V6); n.Underlay.MTU < low {
			return nil, nil, fmt.Errorf("the MTU of %s is %d: pods need at least %d; raise it", n.Underlay.Name, n.Underlay.MTU, low)
		}
		return extension{plain{Node: n, Name: "extension"}, commands}, nil, nil
	}
}

// Wire returns Echo false: whether a peer answers is up to the commands. Its Name is the
// same for all commands, so that other commands are adopted at once.
func (x extension) Wire() Wire { return Wire{Name: "extension", Paths: true} }

// Devices implements Backend. The commands are a device of their own, which
// "exists" when PreStartupCommand has succeeded.
func (x extension) Devices(local subnet.Lease) []dataplane.Device {
	commands := x.commands
	commands.V4, commands.V6 = x.ends(&local)
	return append(x.plain.Devices(local), dataplane.Device{Name: extensionDevice, Kind: commands})
}

// ends returns the subnets and addresses of a lease in the families in use.
func (x extension) ends(l *subnet.Lease) (v4, v6 dataplane.Family) {
	for e := range x.shared(l) {
		if end := (dataplane.Family{Subnet: e.Subnet, PublicIP: e.PublicIP}); e.Subnet.Addr().Is6() {
			v6 = end
		} else {
			v4 = end
		}
	}
	return v4, v6
}

// Describe implements Backend. It publishes the output of PreStartupCommand as a
// JSON string, the same for each family.
func (x extension) Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error) {
	local, _ = x.plain.Describe(local, links) // never fails, and leaves Data empty
	link, ok := links[extensionDevice]
	if !ok {
		return local, fmt.Errorf("describe the lease: PreStartupCommand has not succeeded")
	}
	if x.commands.PreStartup == "" {
		return local, nil
	}
	for _, e := range []*subnet.Endpoint{&local.V4, &local.V6} {
		if e.On() {
			e.Data, _ = json.Marshal(link.Output) // it never fails for a string
		}
	}
	return local, nil
}

// Paths implements Backend. The paths of both families have the same ByCommands,
// with the whole peer: commands run once for a peer, not for each family. The peer's data
// is what the first of its families has; SubnetAddCommand reads it from standard input.
func (x extension) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	by := dataplane.ByCommands{}
	by.V4, by.V6 = x.ends(peer)
	for _, raw := range []json.RawMessage{peer.V4.Data, peer.V6.Data} {
		data, err := extensionText(raw)
		if err != nil {
			return nil, err
		}
		if by.Data == "" {
			by.Data = data
		}
	}
	encap := dataplane.Encap(by) // made once, so that the paths share its memory
	var paths []*dataplane.Path
	for _, e := range []dataplane.Family{by.V4, by.V6} {
		if e != (dataplane.Family{}) {
			paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: extensionDevice, Encap: encap})
		}
	}
	return paths, nil
}

// extensionText returns the string in a peer's backend data, which the output of its
// PreStartupCommand is; "" for none.
func extensionText(raw json.RawMessage) (s string, err error) {
	if len(raw) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(raw, &s); err != nil { // null leaves s as it is
		return "", fmt.Errorf("its backend data is not a JSON string: %.80q", raw)
	}
	return s, nil
}
