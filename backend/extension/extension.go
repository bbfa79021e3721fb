// Package extension is the extension backend: commands of the operator connect the
// nodes. The commands are in the network configuration: PreStartupCommand and
// PostStartupCommand, which run at the start, SubnetAddCommand and SubnetRemoveCommand,
// which run for a peer. Package pkg/dataplane/extension runs them, and has their contract.
// This package only passes them on, as a device and as paths.
package extension

import (
	"encoding/json"
	"fmt"
	"strings"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// Kind is the backend's row in the program's table (cmd/flanneld/backends.go).
func Kind() backend.Kind { return backend.Kind{Name: "extension", Parse: parse} }

// extension implements backend.Backend.
type extension struct {
	backend.Plain
	commands dataplane.Commands // as configured: V4 and V6, this node's subnets, are set by Devices
}

// device is the name in dataplane.Links under which the commands' output is found.
const device = "extension"

// parse implements backend.Kind.Parse, on every system. The Maker has no warnings.
func parse(o *conf.Object, _ string) backend.Maker {
	commands := dataplane.Commands{
		PreStartup: o.String("PreStartupCommand", ""), PostStartup: o.String("PostStartupCommand", ""),
		SubnetAdd: o.String("SubnetAddCommand", ""), SubnetRemove: o.String("SubnetRemoveCommand", ""),
	}
	if strings.TrimSpace(commands.SubnetAdd) == "" && strings.TrimSpace(commands.PostStartup) == "" {
		o.Problem("SubnetAddCommand", "is missing, and so is PostStartupCommand: nothing would connect the nodes; set one of them, or use alloc")
	}
	if o.Has("ShutdownCommand") {
		o.Ignore("ShutdownCommand")
		o.Warn("ShutdownCommand", "is never run, as with flannel: the network stays as it is when flanneld stops")
	}
	return func(n backend.Node) (backend.Backend, []string, error) {
		if low := dataplane.MinMTU(n.V6); n.Underlay.MTU < low {
			return nil, nil, fmt.Errorf("the MTU of %s is %d: pods need at least %d; raise it", n.Underlay.Name, n.Underlay.MTU, low)
		}
		return extension{backend.Plain{Node: n, Name: "extension"}, commands}, nil, nil
	}
}

// Wire returns Echo false: whether a peer answers is up to the commands. Its Name is the
// same for all commands, so that other commands are adopted at once.
func (x extension) Wire() backend.Wire { return backend.Wire{Name: "extension", Paths: true} }

// Devices implements backend.Backend. The commands are a device of their own, which
// "exists" when PreStartupCommand has succeeded.
func (x extension) Devices(local subnet.Lease) []dataplane.Device {
	commands := x.commands
	commands.V4, commands.V6 = x.ends(&local)
	return append(x.Plain.Devices(local), dataplane.Device{Name: device, Kind: commands})
}

// ends returns the subnets and addresses of a lease in the families in use.
func (x extension) ends(l *subnet.Lease) (v4, v6 dataplane.Family) {
	for e := range x.Shared(l) {
		if end := (dataplane.Family{Subnet: e.Subnet, PublicIP: e.PublicIP}); e.Subnet.Addr().Is6() {
			v6 = end
		} else {
			v4 = end
		}
	}
	return v4, v6
}

// Describe implements backend.Backend. It publishes the output of PreStartupCommand as a
// JSON string, the same for each family.
func (x extension) Describe(local subnet.Lease, links dataplane.Links) (subnet.Lease, error) {
	local, _ = x.Plain.Describe(local, links) // never fails, and leaves Data empty
	link, ok := links[device]
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

// Paths implements backend.Backend. The paths of both families have the same ByCommands,
// with the whole peer: commands run once for a peer, not for each family. The peer's data
// is what the first of its families has; SubnetAddCommand reads it from standard input.
func (x extension) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	by := dataplane.ByCommands{}
	by.V4, by.V6 = x.ends(peer)
	for _, raw := range []json.RawMessage{peer.V4.Data, peer.V6.Data} {
		data, err := text(raw)
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
			paths = append(paths, &dataplane.Path{Dst: e.Subnet, Via: e.PublicIP, Device: device, Encap: encap})
		}
	}
	return paths, nil
}

// text returns the string in a peer's backend data, which the output of its
// PreStartupCommand is; "" for none.
func text(raw json.RawMessage) (s string, err error) {
	if len(raw) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(raw, &s); err != nil { // null leaves s as it is
		return "", fmt.Errorf("its backend data is not a JSON string: %.80q", raw)
	}
	return s, nil
}
