package cniplugin

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

// check compares what was saved with what the node has today, and has the pod's network checked: by the delegate, or on
// Windows, whose plugins have no CHECK, by a look at its endpoint.
func (p *Plugin) check(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if !isJSON(c.PrevResult) {
		return cniError(types.ErrInvalidNetworkConfig, "prevResult is missing, which CHECK needs")
	}
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return err
	}
	path := at.find()
	if path == "" {
		return cniError(types.ErrUnknownContainer, "nothing is saved for container %s in %s: it was not added, or is deleted", args.ContainerID, c.DataDir)
	}
	d, err := (&saved{path: path}).read()
	if errors.Is(err, fs.ErrNotExist) {
		return cniError(types.ErrUnknownContainer, "%w", err)
	} else if err != nil {
		return cniError(types.ErrDecodingFailure, "%w", err)
	}
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		return err
	}
	today, err := newDelegate(c, subnet, p.OS)
	if err != nil {
		return err
	}
	if err := compare(d, today); err != nil {
		return err
	}
	if p.Endpoint != nil {
		return p.checkEndpoint(ctx, c, d, args)
	}
	d.conf.set("cniVersion", c.version()) // in which prevResult is
	d.setPrevResult(c)
	_, err = p.newCall("CHECK", args).run(ctx, d)
	return err
}

// compare says what of the node's subnets and MTU is other than when the pod was made.
func compare(then, today delegate) error {
	var problems []string
	was, is := then.subnets(), today.subnets()
	if !slices.Equal(was, is) {
		problems = append(problems, fmt.Sprintf("it has an address of %v, but the node's subnets are %v", was, is))
	}
	if was, is := then.mtu(), today.mtu(); was != "" && is != "" && was != is {
		problems = append(problems, fmt.Sprintf("it has an MTU of %s, but pods of this node are to have %s", was, is))
	}
	if len(problems) == 0 {
		return nil
	}
	return &types.Error{Code: errSubnetChanged, Msg: "the pod was made when the node had another network: " + strings.Join(problems, "; "),
		Details: "delete the pod so that it is made again"}
}
