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

// check implements the command CHECK, with which a runtime asks whether a pod's network
// is as ADD left it. It compares
//
//	the configuration that ADD saved   with that which ADD would make now (compareNetworks)
//	on Linux, the pod's interface      with the result of ADD: the delegate's CHECK does
//	on Windows, the HNS endpoint       with the saved configuration (checkEndpoint), as the
//	                                   delegates there have no CHECK
//
// It changes nothing and waits for nothing: unlike ADD, it fails at once without a subnet
// file, and takes no lock.
func (p *Plugin) check(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if !isSet(c.PrevResult) { // the result of ADD, which the runtime keeps
		return cniError(types.ErrInvalidNetworkConfig, "CHECK requires prevResult")
	}
	saved, err := p.savedDelegate(c, args)
	if err != nil {
		return err
	}
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		return err
	}
	current, err := newDelegate(c, subnet, p.OS)
	if err != nil {
		return err
	}
	if err := compareNetworks(saved, current); err != nil {
		return err
	}
	if p.Endpoint != nil { // on Windows
		return p.checkEndpoint(ctx, c, saved, args)
	}
	// The delegate decodes prevResult with the version of its configuration. The saved one
	// may have a lower version, since ADD lowers it for an old delegate.
	saved.conf.set("cniVersion", c.version())
	saved.setPrevResult(c)
	_, err = p.newCall("CHECK", args).run(ctx, saved) // run lowers version and prevResult for such a delegate again
	return err
}

// savedDelegate returns the delegate's configuration that ADD saved. attachment names the
// pod's interface, and find its file (saved.go).
func (p *Plugin) savedDelegate(c *conf, args *skel.CmdArgs) (delegate, error) {
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return delegate{}, err
	}
	path := at.find()
	if path == "" {
		return delegate{}, cniError(types.ErrUnknownContainer,
			"no saved configuration for container %s in %s: it was never added, or is deleted", args.ContainerID, c.DataDir)
	}
	saved, err := (&savedFile{path: path}).read()
	if errors.Is(err, fs.ErrNotExist) { // DEL has just removed the file
		return delegate{}, cniError(types.ErrUnknownContainer, "%w", err)
	} else if err != nil {
		return delegate{}, cniError(types.ErrDecodingFailure, "%w", err)
	}
	return saved, nil
}

// compareNetworks returns an error if the subnets or the MTU of the node have
// changed since the pod was added. The pod's addresses are of the former subnets, so only
// a new pod helps.
func compareNetworks(saved, current delegate) error {
	var problems []string
	if old, now := saved.subnets(), current.subnets(); !slices.Equal(old, now) {
		problems = append(problems, fmt.Sprintf("pod subnets %v, node subnets %v", old, now))
	}
	if old, now := saved.mtu(), current.mtu(); old != "" && now != "" && old != now { // "": the configuration leaves the MTU to the delegate
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
