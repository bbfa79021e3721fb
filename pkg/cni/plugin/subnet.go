// This file reads the subnet file. It does not use package subnet, which imports
// clients of the stores.

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// subnetInfo is the content of the subnet file.
type subnetInfo struct {
	families []family // one or two, IPv4 first
	mtu      int      // bytes
	ipMasq   bool     // whether flanneld masquerades
	// former are the IPv4 subnets that this node had before, masked. flannel's file has none.
	former []netip.Prefix
}

// family is an address family in which the node has a subnet.
type family struct {
	subnet   netip.Prefix   // this node's, masked
	networks []netip.Prefix // the cluster's, masked, without duplicates; at least one
}

// maxSubnetFile is the maximum number of bytes read from the subnet file.
const maxSubnetFile = 64 << 10

// parseSubnet parses a subnet file. The error lists all problems. Unknown keys are
// ignored.
func parseSubnet(raw []byte) (s subnetInfo, err error) {
	values := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.HasPrefix(key, "FLANNEL_") {
			values[key] = strings.Trim(value, `"'`)
		}
	}
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, f := range []struct {
		network, subnet string
		bits            int
	}{{"FLANNEL_NETWORK", "FLANNEL_SUBNET", 32}, {"FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET", 128}} {
		network, subnet := values[f.network], values[f.subnet]
		switch {
		case network == "" && subnet == "":
			continue
		case network == "":
			problem("%s is missing", f.network)
			continue
		case subnet == "":
			problem("%s is missing", f.subnet)
			continue
		}
		nodeSubnet, err := parsePrefix(subnet, f.bits)
		if err != nil {
			problem("%s: %v", f.subnet, err)
		}
		networks, err := parsePrefixes(network, f.bits)
		if err != nil {
			problem("%s: %v", f.network, err)
		}
		s.families = append(s.families, family{nodeSubnet, networks})
	}
	if len(s.families)+len(problems) == 0 {
		problem("FLANNEL_NETWORK and FLANNEL_SUBNET are missing")
	}
	if value, ok := values["FLANNEL_MTU"]; !ok {
		problem("FLANNEL_MTU is missing")
	} else if s.mtu, err = strconv.Atoi(value); err != nil || s.mtu < 0 {
		problem("FLANNEL_MTU=%.40q is not a number of bytes", value)
	}
	if value, ok := values["FLANNEL_IPMASQ"]; !ok {
		problem("FLANNEL_IPMASQ is missing")
	} else if s.ipMasq, err = strconv.ParseBool(value); err != nil {
		problem("FLANNEL_IPMASQ=%.40q is neither true nor false", value)
	}
	for item := range strings.SplitSeq(values["FLANNEL_FORMER_SUBNET"], ",") {
		if p, err := parsePrefix(item, 32); err == nil { // else it is missing or invalid, and no pod needs it
			s.former = append(s.former, p)
		}
	}
	if len(problems) > 0 {
		return subnetInfo{}, errors.New(strings.Join(problems, "; "))
	}
	return s, nil
}

// parsePrefixes parses a comma-separated list and removes duplicates.
func parsePrefixes(value string, bits int) (prefixes []netip.Prefix, err error) {
	for item := range strings.SplitSeq(value, ",") {
		p, err := parsePrefix(item, bits)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

// parsePrefix parses a network of the family whose addresses have this number of
// bits, and clears host bits.
func parsePrefix(value string, bits int) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(value))
	if err != nil || p.Addr().BitLen() != bits || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%.60q is not an IPv%d network", value, map[int]int{32: 4, 128: 6}[bits])
	}
	return p.Masked(), nil
}

// readSubnet reads the subnet file. Errors say what is missing, and in Details
// where to find the cause.
func readSubnet(path string) (subnetInfo, error) {
	const advice = "flanneld writes it when the node has a subnet; " +
		"run 'flanneld status' on this node, or see the log of its flannel pod"
	fail := func(code uint, text string) (subnetInfo, error) {
		return subnetInfo{}, &types.Error{Code: code, Msg: text, Details: advice}
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(types.ErrTryAgainLater, "subnet file "+path+" is missing")
	}
	if err != nil {
		return fail(types.ErrIOFailure, "subnet file: "+err.Error())
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSubnetFile))
	if err != nil {
		return fail(types.ErrIOFailure, "subnet file: "+err.Error())
	}
	s, err := parseSubnet(raw)
	if err != nil {
		return fail(types.ErrDecodingFailure, "subnet file "+path+": "+err.Error())
	}
	return s, nil
}

// awaitSubnet retries readSubnet until limit, because flanneld may be starting.
// Kubelet would retry the pod much later.
func awaitSubnet(ctx context.Context, path string, limit time.Duration) (subnetInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		s, err := readSubnet(path)
		if err == nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
