package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
)

// FormerSubnetError is the error of a bridge that has pods, and the IPv4 address of the
// gateway of a subnet that this node had before. The CNI plugin bridge gives such a
// bridge no other address, so that no new pod can start. Its text stays the same while pods
// leave, because each new text is logged and written to the Node; the plugin's own error
// names the pods.
type FormerSubnetError struct {
	Bridge    string
	Addresses []netip.Prefix // at least one
	Node      string         // the name of this node in Kubernetes; "": not in Kubernetes
}

func (e *FormerSubnetError) Error() string {
	var addresses []string
	for _, a := range e.Addresses {
		addresses = append(addresses, a.String())
	}
	text := fmt.Sprintf("%s has %s of a former subnet of this node, and pods: no new pod can start here until the pods of that subnet are deleted",
		e.Bridge, strings.Join(addresses, " and "))
	if e.Node != "" {
		text += ": kubectl delete pods -A --field-selector spec.hostNetwork=false,spec.nodeName=" + e.Node
	}
	return text
}

// Cause is the value of the attribute cause in the log.
func (*FormerSubnetError) Cause() string { return "former-subnet" }

// GatewayOf returns the address that the pods' bridge has in a node's subnet.
func GatewayOf(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Masked().Addr().Next(), subnet.Bits())
}
