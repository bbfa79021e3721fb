package kube

// This file parses Nodes and makes the patches for ours. A node describes how to
// reach it in annotations of its Node, whose names begin with a prefix that users can
// set. The example has the default one, and a node with IPv4 only:
//
//	spec.podCIDR:                                10.5.1.0/24
//	flannel.alpha.coreos.com/kube-subnet-manager true
//	flannel.alpha.coreos.com/backend-type        vxlan
//	flannel.alpha.coreos.com/backend-data        {"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}
//	flannel.alpha.coreos.com/public-ip           192.168.0.1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"flannel/subnet"
)

// storedNode has the fields of a Node that we use, less than a tenth of it. Only its CIDRs are completed after it was
// made, before others get it (recordNode, observePatched).
type storedNode struct {
	Name, UID   string
	Version     string   // resourceVersion
	Created     int64    // in Unix seconds
	CIDRs       []string // spec.podCIDRs or, if that is empty, spec.podCIDR; not validated
	Annotations annotations
	Hostname    string // label kubernetes.io/hostname, which kubelet sets and which may differ from Name
	HasSpec     bool   // it was read with its spec; if not, empty CIDRs mean that they are unknown
	Windows     bool   // label kubernetes.io/os, which kubelet sets, is windows
}

// nodeOf returns what parseNode returns for the encoded Node. It is for whole Nodes, of which flanneld status --cluster
// also uses other fields.
func nodeOf(n *corev1.Node, prefix string) *storedNode {
	f := &storedNode{Name: n.Name, UID: string(n.UID), Version: n.ResourceVersion, Created: n.CreationTimestamp.ProtoTime().Seconds,
		CIDRs: n.Spec.PodCIDRs, Hostname: n.Labels[corev1.LabelHostname], HasSpec: true,
		Windows: n.Labels[corev1.LabelOSStable] == "windows"}
	if len(f.CIDRs) == 0 && n.Spec.PodCIDR != "" {
		f.CIDRs = []string{n.Spec.PodCIDR}
	}
	for key, value := range n.Annotations {
		f.Annotations.set(prefix, key, value)
	}
	return f
}

// An annotation identifies one of our annotations. annotations has the values of all;
// "" means that the Node does not have the annotation.
type (
	annotation  int
	annotations [annotationCount]string
)

const (
	managed     annotation = iota // "true": flanneld or flannel publishes the other ones; without it, the Node is no peer
	backendType                   // "vxlan", …
	backendData                   // JSON: what peers need beside the address; its form is that of the backend
	backendV6Data
	publicIP // the address to which peers send
	publicIPv6
	// Set by the operator: the address that peers use instead of the node's public-ip. We publish it in public-ip.
	overwrite
	overwriteV6
	// Set by the operator: as if the daemon ran with --public-ip.
	nodeIP
	nodeIPv6
	annotationCount // not an annotation: their number
)

// annotationNames are the names after the prefix.
var annotationNames = [annotationCount]string{
	managed: "kube-subnet-manager", backendType: "backend-type", backendData: "backend-data", backendV6Data: "backend-v6-data",
	publicIP: "public-ip", publicIPv6: "public-ipv6", overwrite: "public-ip-overwrite", overwriteV6: "public-ipv6-overwrite",
	nodeIP: "node-public-ip", nodeIPv6: "node-public-ipv6",
}

// set sets the value of an annotation, if it is one of ours.
func (n *annotations) set(prefix, key, value string) {
	name, ours := strings.CutPrefix(key, prefix)
	if !ours {
		return
	}
	for i := range n {
		if annotationNames[i] == name {
			n[i] = value
		}
	}
}

// Operators returns the annotations that the operator sets, and that we only read.
func (n annotations) Operators() [4]string { return [4]string(n[overwrite:annotationCount]) }

// errNoPeer means that a Node is not a peer, and nothing is wrong with it. Other errors of leaseOf reject the peer.
var errNoPeer = errors.New("not managed by flannel")

// leaseOf returns the lease that a Node describes, whose Backend may be empty. The error is errNoPeer, or one line
// that quotes at most the beginning of an invalid value.
func leaseOf(n *storedNode) (*subnet.Lease, error) {
	if n.Annotations[managed] != "true" {
		return nil, errNoPeer
	}
	v4, v6, err := subnetsOf(n.CIDRs)
	if err != nil {
		return nil, err
	}
	// unique: all leases share the memory of equal types.
	l := &subnet.Lease{Name: n.Name, Since: n.Created, Backend: unique.Make(n.Annotations[backendType]).Value()}
	if l.V4, err = n.endpoint(v4, publicIP, backendData); err != nil {
		return nil, err
	}
	if l.V6, err = n.endpoint(v6, publicIPv6, backendV6Data); err != nil {
		return nil, err
	}
	switch {
	case !v4.IsValid() && !v6.IsValid():
		return nil, errors.New("no podCIDR")
	case !l.V4.On() && !l.V6.On(): // with one of them on, it is a lease of one family, see endpoint
		return nil, errors.New("no annotation public-ip for the podCIDR")
	}
	return l, nil
}

// subnetsOf returns the first podCIDR of each family; zero: there is none. It keeps host bits, with which package plan
// rejects the lease.
func subnetsOf(cidrs []string) (v4, v6 netip.Prefix, err error) {
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		switch {
		case err != nil || p.Addr().Is4In6(): // IPv4 written as IPv6: of which family it is would be a guess
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("podCIDR %.60q is not a network", c)
		case p.Addr().Is4() && !v4.IsValid():
			v4 = p
		case p.Addr().Is6() && !v6.IsValid():
			v6 = p
		}
	}
	return v4, v6, nil
}

// endpoint returns the endpoint of the family of s; ip and data name its annotations. It is off if the node has no
// subnet or no address of the family: a node may have podCIDRs of both families and use one.
func (n *storedNode) endpoint(s netip.Prefix, ip, data annotation) (subnet.Endpoint, error) {
	if !s.IsValid() || n.Annotations[ip] == "" {
		return subnet.Endpoint{}, nil
	}
	a, err := address(n.Annotations[ip], s.Addr().Is6())
	if err != nil {
		return subnet.Endpoint{}, fmt.Errorf("annotation %s: %w", annotationNames[ip], err)
	}
	e := subnet.Endpoint{Subnet: s, PublicIP: a}
	if e.Data, err = compact(n.Annotations[data]); err != nil {
		return subnet.Endpoint{}, fmt.Errorf("annotation %s: %w", annotationNames[data], err)
	}
	return e, nil
}

// address parses an address of the family, without a zone.
func address(text string, v6 bool) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is6() != v6 || a.Zone() != "" || a.Is4In6() {
		family := "IPv4"
		if v6 {
			family = "IPv6"
		}
		return netip.Addr{}, fmt.Errorf("%.60q is not an %s address", text, family)
	}
	return a, nil
}

// maxData bounds backend data, in bytes. Normally it has less than a hundred.
const maxData = 16 << 10

// compact removes the spaces of a JSON text. It returns nil for null and for "", which mean no data.
func compact(text string) (json.RawMessage, error) {
	var b bytes.Buffer
	switch {
	case text == "":
		return nil, nil
	case len(text) > maxData:
		return nil, fmt.Errorf("%d bytes are more than %d", len(text), maxData)
	case json.Compact(&b, []byte(text)) != nil:
		return nil, fmt.Errorf("%.60q is not JSON", text)
	case b.String() == "null":
		return nil, nil
	}
	return b.Bytes(), nil
}

// describeLease is the inverse of leaseOf, for ownNode: it returns the desired annotations of our Node,
// from which peers read l. Annotations for a family that is off are empty, so that they are deleted. Those
// that do not describe l are as in actual, the annotations that our Node has. problems are invalid
// annotations of the operator, for the log.
func describeLease(l *subnet.Lease, actual annotations) (want annotations, problems []string) {
	want = actual
	want[managed], want[backendType] = "true", l.Backend
	for _, family := range []struct {
		e                   subnet.Endpoint
		ip, data, overwrite annotation
	}{
		{l.V4, publicIP, backendData, overwrite},
		{l.V6, publicIPv6, backendV6Data, overwriteV6},
	} {
		want[family.ip], want[family.data] = "", ""
		if !family.e.On() {
			continue
		}
		addr, problem := actual.Operator(family.overwrite, family.e.Subnet.Addr().Is6())
		if problem != "" {
			problems = append(problems, problem)
		}
		if !addr.IsValid() {
			addr = family.e.PublicIP
		}
		want[family.ip], want[family.data] = addr.String(), "null" // without data, flannel writes null, too
		if family.e.Data != nil {
			want[family.data] = string(family.e.Data)
		}
		if data, err := compact(actual[family.data]); err == nil && actual[family.data] != "" && bytes.Equal(data, family.e.Data) {
			want[family.data] = actual[family.data] // it differs only in its spaces: nothing to write
		}
	}
	return want, problems
}

// Operator returns an address that the operator has set by an annotation: IPv6 or, without
// v6, IPv4. It is zero if the annotation is empty. It is zero, with a problem, if the
// annotation is not an address of that family, or one with which peers would reject this node.
func (n annotations) Operator(name annotation, v6 bool) (a netip.Addr, problem string) {
	if n[name] == "" {
		return netip.Addr{}, ""
	}
	a, err := address(n[name], v6)
	if err == nil {
		err = subnet.CheckNodeAddress(a)
	}
	if err != nil {
		return netip.Addr{}, fmt.Sprintf("ignoring annotation %s: %v", annotationNames[name], err)
	}
	return a, ""
}

// patchOf returns the strategic merge patch that changes the annotations from actual to
// want, and the names of those in it, without prefix. raw is nil if nothing differs.
func patchOf(prefix string, actual, want annotations) (raw []byte, changes []string) {
	values := map[string]*string{}
	for i := range want {
		if want[i] == actual[i] {
			continue
		}
		values[prefix+annotationNames[i]] = nil // null deletes it
		if want[i] != "" {
			values[prefix+annotationNames[i]] = &want[i]
		}
		changes = append(changes, annotationNames[i])
	}
	if len(values) == 0 {
		return nil, nil
	}
	raw, _ = json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}}) // does not fail for strings
	return raw, changes
}
