// Package format reads what a Node says, and writes what ours shall say: flannel's annotations, and the few fields of
// Kubernetes' protobuf that they are in. It is pure.
package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"flannel/subnet"
)

// Node is what we take of a Node; the rest of it, nine tenths and more, is never kept.
type Node struct {
	Name, UID string
	Version   string   // its resourceVersion
	Created   int64    // in Unix seconds
	CIDRs     []string // spec.podCIDRs, or else podCIDR
	Notes     Notes
	Hostname  string // its label kubernetes.io/hostname, which kubelet gives it and which need not be its name
	Whole     bool   // it was read with its spec: no cidrs then mean that it has none
	Windows   bool   // by its label kubernetes.io/os, which kubelet gives it
}

// Note is one of our annotations, Notes the values of all; an empty one counts as absent.
type (
	Note  int
	Notes [NoteCount]string
)

const (
	Managed Note = iota
	backendType
	backendData
	backendV6Data
	publicIP
	publicIPv6
	// The operator's: what is told to the others instead.
	overwrite
	overwriteV6
	// The operator's: as if --public-ip had been given.
	NodeIP
	NodeIPv6
	NoteCount
)

// AnnotationNames follow the prefix.
var AnnotationNames = [NoteCount]string{
	Managed: "kube-subnet-manager", backendType: "backend-type", backendData: "backend-data", backendV6Data: "backend-v6-data",
	publicIP: "public-ip", publicIPv6: "public-ipv6", overwrite: "public-ip-overwrite", overwriteV6: "public-ipv6-overwrite",
	NodeIP: "node-public-ip", NodeIPv6: "node-public-ipv6",
}

// set takes in an annotation if it is one of ours.
func (n *Notes) set(prefix, key, value string) {
	name, ours := strings.CutPrefix(key, prefix)
	if !ours {
		return
	}
	for i := range n {
		if AnnotationNames[i] == name {
			n[i] = value
		}
	}
}

// Operators are the annotations that we only read.
func (n Notes) Operators() [4]string { return [4]string(n[overwrite:NoteCount]) }

// ErrNoPeer says that a Node takes no part in the network.
var ErrNoPeer = errors.New("not managed by flannel")

// LeaseOf reads a Node. The error is ErrNoPeer, or one sentence that quotes a bounded part of what is wrong.
func LeaseOf(n *Node) (*subnet.Lease, error) {
	if n.Notes[Managed] != "true" {
		return nil, ErrNoPeer
	}
	v4, v6, err := Subnets(n.CIDRs)
	if err != nil {
		return nil, err
	}
	l := &subnet.Lease{Name: n.Name, Since: n.Created, Backend: n.Notes[backendType]}
	if l.V4, err = n.endpoint(v4, publicIP, backendData); err != nil {
		return nil, err
	}
	if l.V6, err = n.endpoint(v6, publicIPv6, backendV6Data); err != nil {
		return nil, err
	}
	switch {
	case !v4.IsValid() && !v6.IsValid():
		return nil, errors.New("it has no podCIDR")
	case !l.V4.On() && !l.V6.On():
		return nil, errors.New("it has no public-ip annotation for its podCIDR")
	case l.Backend == "":
		return nil, errors.New("it has no backend-type annotation")
	}
	return l, nil
}

// Subnets finds the subnet of each family.
func Subnets(cidrs []string) (v4, v6 netip.Prefix, err error) {
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		switch {
		case err != nil || p.Addr().Is4In6():
			return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("its podCIDR %.60q is no network", c)
		case p.Addr().Is4() && !v4.IsValid():
			v4 = p
		case p.Addr().Is6() && !v6.IsValid():
			v6 = p
		}
	}
	return v4, v6, nil
}

// endpoint is off where the node has no subnet of that family, or tells no address: it may use one family of two.
func (n *Node) endpoint(s netip.Prefix, ip, data Note) (subnet.Endpoint, error) {
	if !s.IsValid() || n.Notes[ip] == "" {
		return subnet.Endpoint{}, nil
	}
	a, err := address(n.Notes[ip], s.Addr().Is6())
	if err != nil {
		return subnet.Endpoint{}, fmt.Errorf("its %s %w", AnnotationNames[ip], err)
	}
	e := subnet.Endpoint{Subnet: s, PublicIP: a}
	if e.Data, err = compact(n.Notes[data]); err != nil {
		return subnet.Endpoint{}, fmt.Errorf("its %s %w", AnnotationNames[data], err)
	}
	return e, nil
}

func address(text string, v6 bool) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is6() != v6 || a.Zone() != "" || a.Is4In6() {
		family := "IPv4"
		if v6 {
			family = "IPv6"
		}
		return netip.Addr{}, fmt.Errorf("%.60q is no %s address", text, family)
	}
	return a, nil
}

// maxData bounds backend data, in bytes: real ones have fewer than a hundred.
const maxData = 16 << 10

// compact is JSON without its spaces, nil for null.
func compact(text string) (json.RawMessage, error) {
	var b bytes.Buffer
	switch {
	case text == "":
		return nil, nil
	case len(text) > maxData:
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), maxData)
	case json.Compact(&b, []byte(text)) != nil:
		return nil, fmt.Errorf("%.60q is not JSON", text)
	case b.String() == "null":
		return nil, nil
	}
	return b.Bytes(), nil
}

// Describe is LeaseOf the other way round: what our annotations on a Node shall be for the others to see l, given what
// stands there now. A family that is off has none. Problems are annotations of the operator's that make no sense.
func Describe(l *subnet.Lease, now Notes) (want Notes, problems []string) {
	want = now
	want[Managed], want[backendType] = "true", l.Backend
	for _, one := range []struct {
		e                   subnet.Endpoint
		ip, data, overwrite Note
	}{
		{l.V4, publicIP, backendData, overwrite},
		{l.V6, publicIPv6, backendV6Data, overwriteV6},
	} {
		want[one.ip], want[one.data] = "", ""
		if !one.e.On() {
			continue
		}
		told, problem := now.Operator(one.overwrite, one.e.Subnet.Addr().Is6())
		if problem != "" {
			problems = append(problems, problem)
		}
		if !told.IsValid() {
			told = one.e.PublicIP
		}
		want[one.ip], want[one.data] = told.String(), "null"
		if one.e.Data != nil {
			want[one.data] = string(one.e.Data)
		}
		if same, err := compact(now[one.data]); err == nil && now[one.data] != "" && bytes.Equal(same, one.e.Data) {
			want[one.data] = now[one.data] // spaced in another way
		}
	}
	return want, problems
}

// Operator reads an address that an operator has set; it is zero if there is none or, with a problem, nonsense.
func (n Notes) Operator(by Note, v6 bool) (a netip.Addr, problem string) {
	if n[by] == "" {
		return netip.Addr{}, ""
	}
	a, err := address(n[by], v6)
	if err != nil {
		return netip.Addr{}, fmt.Sprintf("the annotation %s %v: ignoring it", AnnotationNames[by], err)
	}
	return a, ""
}

// Patch is the strategic merge patch that makes want of now, nil if there is nothing to do, and what it changes.
func Patch(prefix string, now, want Notes) (raw []byte, changes []string) {
	values := map[string]*string{}
	for i := range want {
		if want[i] == now[i] {
			continue
		}
		values[prefix+AnnotationNames[i]] = nil // takes it away
		if want[i] != "" {
			values[prefix+AnnotationNames[i]] = &want[i]
		}
		changes = append(changes, AnnotationNames[i])
	}
	if len(values) == 0 {
		return nil, nil
	}
	raw, _ = json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}}) // strings always marshal
	return raw, changes
}
