package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"flannel/subnet"
)

// node is what we take of a Node; the rest of it, nine tenths and more, is never kept.
type node struct {
	name, uid string
	version   string   // its resourceVersion
	created   int64    // in Unix seconds
	cidrs     []string // spec.podCIDRs, or else podCIDR
	notes     notes
	hostname  string // its label kubernetes.io/hostname, which kubelet gives it and which need not be its name
	whole     bool   // it was read with its spec: no cidrs then mean that it has none
	windows   bool   // by its label kubernetes.io/os, which kubelet gives it
}

// note is one of our annotations, notes the values of all; an empty one counts as absent.
type (
	note  int
	notes [noteCount]string
)

const (
	managed note = iota
	backendType
	backendData
	backendV6Data
	publicIP
	publicIPv6
	// The operator's: what is told to the others instead.
	overwrite
	overwriteV6
	// The operator's: as if --public-ip had been given.
	nodeIP
	nodeIPv6
	noteCount
)

// names follow the prefix.
var names = [noteCount]string{
	managed: "kube-subnet-manager", backendType: "backend-type", backendData: "backend-data", backendV6Data: "backend-v6-data",
	publicIP: "public-ip", publicIPv6: "public-ipv6", overwrite: "public-ip-overwrite", overwriteV6: "public-ipv6-overwrite",
	nodeIP: "node-public-ip", nodeIPv6: "node-public-ipv6",
}

// set takes in an annotation if it is one of ours.
func (n *notes) set(prefix, key, value string) {
	name, ours := strings.CutPrefix(key, prefix)
	if !ours {
		return
	}
	for i := range n {
		if names[i] == name {
			n[i] = value
		}
	}
}

// operators are the annotations that we only read.
func (n notes) operators() [4]string { return [4]string(n[overwrite:noteCount]) }

// errNoPeer says that a Node takes no part in the network.
var errNoPeer = errors.New("not managed by flannel")

// leaseOf reads a Node. The error is errNoPeer, or one sentence that quotes a bounded part of what is wrong.
func leaseOf(n *node) (*subnet.Lease, error) {
	if n.notes[managed] != "true" {
		return nil, errNoPeer
	}
	v4, v6, err := subnets(n.cidrs)
	if err != nil {
		return nil, err
	}
	l := &subnet.Lease{Name: n.name, Since: n.created, Backend: n.notes[backendType]}
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

// subnets finds the subnet of each family.
func subnets(cidrs []string) (v4, v6 netip.Prefix, err error) {
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
func (n *node) endpoint(s netip.Prefix, ip, data note) (subnet.Endpoint, error) {
	if !s.IsValid() || n.notes[ip] == "" {
		return subnet.Endpoint{}, nil
	}
	a, err := address(n.notes[ip], s.Addr().Is6())
	if err != nil {
		return subnet.Endpoint{}, fmt.Errorf("its %s %w", names[ip], err)
	}
	e := subnet.Endpoint{Subnet: s, PublicIP: a}
	if e.Data, err = compact(n.notes[data]); err != nil {
		return subnet.Endpoint{}, fmt.Errorf("its %s %w", names[data], err)
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

// fixed tells in which families --public-ip was given: there the operator's annotation does not count.
type fixed struct{ v4, v6 bool }

// describe is leaseOf the other way round: what our annotations on a Node shall be for the others to see l, given what
// stands there now. A family that is off has none. Problems are annotations of the operator's that make no sense.
func describe(l *subnet.Lease, now notes, f fixed) (want notes, problems []string) {
	want = now
	want[managed], want[backendType] = "true", l.Backend
	for _, one := range []struct {
		e                         subnet.Endpoint
		ip, data, node, overwrite note
		fixed                     bool
	}{
		{l.V4, publicIP, backendData, nodeIP, overwrite, f.v4},
		{l.V6, publicIPv6, backendV6Data, nodeIPv6, overwriteV6, f.v6},
	} {
		want[one.ip], want[one.data] = "", ""
		if !one.e.On() {
			continue
		}
		told := one.e.PublicIP
		for _, by := range []note{one.node, one.overwrite} { // the later one counts for more
			if now[by] == "" || by == one.node && one.fixed {
				continue
			}
			if a, err := address(now[by], one.e.Subnet.Addr().Is6()); err != nil {
				problems = append(problems, fmt.Sprintf("the annotation %s %v: ignoring it", names[by], err))
			} else {
				told = a
			}
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

// patch is the strategic merge patch that makes want of now, nil if there is nothing to do, and what it changes.
func patch(prefix string, now, want notes) (raw []byte, changes []string) {
	values := map[string]*string{}
	for i := range want {
		if want[i] == now[i] {
			continue
		}
		values[prefix+names[i]] = nil // takes it away
		if want[i] != "" {
			values[prefix+names[i]] = &want[i]
		}
		changes = append(changes, names[i])
	}
	if len(values) == 0 {
		return nil, nil
	}
	raw, _ = json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}}) // strings always marshal
	return raw, changes
}
