package plugin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// formerBridge is a bridge whose first IPv4 address is not the gateway of the node's subnet. The
// delegate, the plugin bridge, looks for the gateway in the kernel's order, and refuses new pods
// at another IPv4 address; with its option forceAddress it replaces that address. (It adds an
// IPv6 address to those of other networks.)
//
//	the address is                 who deletes it
//	the gateway of a former        flanneld, when no pod is on the bridge any more
//	subnet in the subnet file
//	any other, as of another       an operator
//	CNI configuration (foreign)
type formerBridge struct {
	name      string
	addresses []netip.Prefix // the IPv4 ones before the gateway, all if that is missing
	foreign   []netip.Prefix // those of addresses that flanneld does not delete
}

// findFormerBridge returns nil if the delegate can use its bridge, or creates it. former are
// the subnets that the node had before.
func findFormerBridge(d delegate, former []netip.Prefix) *formerBridge {
	var conf struct {
		Bridge                                    string
		IsGateway, IsDefaultGateway, ForceAddress bool
		IPAM                                      struct{ Type string }
	}
	if json.Unmarshal(d.bytes(), &conf) != nil || d.Type != "bridge" || conf.IPAM.Type != "host-local" ||
		!conf.IsGateway && !conf.IsDefaultGateway || conf.ForceAddress {
		return nil
	}
	b := &formerBridge{name: cmp.Or(conf.Bridge, "cni0")}
	for _, s := range d.subnets() { // one of IPv4 at most
		if s.Addr().Is4() {
			b.addresses = b.addresses4()
			if i := slices.Index(b.addresses, gatewayOf(s)); i >= 0 {
				b.addresses = b.addresses[:i]
			}
		}
	}
	if len(b.addresses) == 0 {
		return nil
	}
	for _, a := range b.addresses {
		if !slices.ContainsFunc(former, func(s netip.Prefix) bool { return gatewayOf(s) == a }) {
			b.foreign = append(b.foreign, a)
		}
	}
	return b
}

// gatewayOf returns the address that the bridge gets in a node's subnet.
func gatewayOf(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
}

// addresses4 returns the bridge's IPv4 addresses in the kernel's order, none if there is no such
// bridge.
func (b *formerBridge) addresses4() (all []netip.Prefix) {
	link, err := net.InterfaceByName(b.name)
	if err != nil {
		return nil
	}
	addrs, _ := link.Addrs() // without them the delegate decides
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() {
			all = append(all, p)
		}
	}
	return all
}

// maxPods is how many pods an error names.
const maxPods = 5

// err returns an error that names the pods of other subnets and what to do. STATUS has the code
// errNotAvailable, and ADD (explainBridge) errFormerBridge.
func (b *formerBridge) err(code uint, c *conf, d delegate) *types.Error {
	pods := formerPods(c, d)
	text := "no pod of an earlier subnet is known"
	if len(pods) > 0 {
		text = fmt.Sprintf("%d pods are of an earlier subnet: %s", len(pods), strings.Join(pods[:min(len(pods), maxPods)], ", "))
		if len(pods) > maxPods {
			text += ", …"
		}
	}
	advice := "delete the pods of this node that are not in the host's network, and flanneld corrects the bridge: " +
		"kubectl delete pods -A --field-selector spec.hostNetwork=false,spec.nodeName=NODE"
	if len(b.foreign) > 0 {
		text = fmt.Sprintf("no former subnet in the subnet file has as its gateway: %s, which flanneld does not delete; %s",
			join(b.foreign), text)
		var commands []string
		for _, a := range b.foreign {
			commands = append(commands, fmt.Sprintf("ip address delete %s dev %s", a, b.name))
		}
		advice = fmt.Sprintf("remove any other CNI configuration that uses %s, delete the pods that have addresses outside %s "+
			"(kubectl get pods -A -o wide --field-selector spec.hostNetwork=false,spec.nodeName=NODE shows the addresses), "+
			"and run '%s'",
			b.name, join(d.subnets()), strings.Join(commands, "; "))
	}
	return &types.Error{
		Code:    code,
		Msg:     fmt.Sprintf("%s has %s, but the subnet of this node is %s; %s", b.name, join(b.addresses), join(d.subnets()), text),
		Details: advice,
	}
}

// explainBridge adds to an error of ADD that the bridge has an address of another subnet,
// if it has. It replaces the code of the error, on which no runtime acts, and keeps its text
// with the details.
func explainBridge(failed error, c *conf, d delegate, former []netip.Prefix) error {
	b := findFormerBridge(d, former)
	if b == nil {
		return failed
	}
	e := b.err(errFormerBridge, c, d)
	e.Msg += " (" + failed.Error() + ")"
	return e
}

// formerPods returns the pods of a network whose saved configurations have other subnets
// than the delegate's, by name, or by container ID if ADD has not saved the name.
func formerPods(c *conf, d delegate) (pods []string) {
	files, err := os.ReadDir(c.DataDir)
	if err != nil {
		return nil
	}
	for _, f := range files {
		id, _, ok := parseName(f.Name())
		raw, err := readBounded(filepath.Join(c.DataDir, f.Name()))
		if !ok || err != nil {
			continue
		}
		saved, err := parseSaved(raw)
		if err != nil || saved.conf.text("name") != c.Name || slices.Equal(saved.subnets(), d.subnets()) {
			continue
		}
		var content object
		_ = json.Unmarshal(raw, &content) // parseSaved has read it
		pods = append(pods, cmp.Or(content.text(podKey), id))
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// join returns values with commas between them.
func join[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ", ")
}
