package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// check compares the saved configuration with the node's current subnets and
// MTU, then checks the pod's network. On Linux it calls the delegate's CHECK.
// Windows delegates do not implement CHECK, so there it compares the HNS
// endpoint with the saved configuration.
func (p *Plugin) check(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if !isSet(c.PrevResult) {
		return cniError(types.ErrInvalidNetworkConfig, "CHECK requires prevResult")
	}
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return err
	}
	path := at.find()
	if path == "" {
		return cniError(types.ErrUnknownContainer,
			"no saved configuration for container %s in %s: it was never added, or is deleted", args.ContainerID, c.DataDir)
	}
	d, err := (&savedFile{path: path}).read()
	if errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrUnknownContainer, "%w", err)
	} else if err != nil {
		return cniError(types.ErrDecodingFailure, "%w", err)
	}
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		return err
	}
	current, err := newDelegate(c, subnet, p.OS)
	if err != nil {
		return err
	}
	if err := compareNetworks(d, current); err != nil {
		return err
	}
	if p.Endpoint != nil {
		return p.checkEndpoint(ctx, c, d, args)
	}
	d.conf.set("cniVersion", c.version()) // the version of prevResult
	d.setPrevResult(c)
	_, err = p.newCall("CHECK", args).run(ctx, d)
	return err
}

// compareNetworks returns an error if the subnets or the MTU of the node have
// changed since the pod was added.
func compareNetworks(saved, current delegate) error {
	var problems []string
	if old, now := saved.subnets(), current.subnets(); !slices.Equal(old, now) {
		problems = append(problems, fmt.Sprintf("pod subnets %v, node subnets %v", old, now))
	}
	if old, now := saved.mtu(), current.mtu(); old != "" && now != "" && old != now {
		problems = append(problems, fmt.Sprintf("pod MTU %s, node MTU %s", old, now))
	}
	if len(problems) == 0 {
		return nil
	}
	return &types.Error{
		Code:    errSubnetChanged,
		Msg:     "the node's network has changed since the pod was added: " + strings.Join(problems, "; "),
		Details: "delete the pod so that it is recreated",
	}
}
