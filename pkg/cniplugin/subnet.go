package cniplugin

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

// subnetInfo is what the subnet file says.
type subnetInfo struct {
	families []family // one or two, IPv4 first
	mtu      int      // bytes
	ipMasq   bool
}

// family is one of the two families that the node has a subnet of.
type family struct {
	subnet   netip.Prefix   // masked
	networks []netip.Prefix // masked, no two alike
}

// maxSubnetFile bounds what is read of the subnet file, in bytes.
const maxSubnetFile = 64 << 10

// parseSubnet reads the text of a subnet file. The error names everything that is wrong. Unknown keys are ignored.
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
		one, err := parsePrefix(subnet, f.bits)
		if err != nil {
			problem("%s: %v", f.subnet, err)
		}
		networks, err := parsePrefixes(network, f.bits)
		if err != nil {
			problem("%s: %v", f.network, err)
		}
		s.families = append(s.families, family{one, networks})
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
	if len(problems) > 0 {
		return subnetInfo{}, errors.New(strings.Join(problems, "; "))
	}
	return s, nil
}

// parsePrefixes reads a list with commas.
func parsePrefixes(value string, bits int) (all []netip.Prefix, err error) {
	for one := range strings.SplitSeq(value, ",") {
		p, err := parsePrefix(one, bits)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all, nil
}

func parsePrefix(value string, bits int) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(value))
	if err != nil || p.Addr().BitLen() != bits || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%.60q is not an IPv%d network", value, map[int]int{32: 4, 128: 6}[bits])
	}
	return p.Masked(), nil
}

// readSubnet reads the subnet file. Its errors say what is missing and where to look.
func readSubnet(path string) (subnetInfo, error) {
	const advice = "flanneld writes it once the node has a subnet; run 'flanneld status' on this node, or see the log of its flannel pod"
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return subnetInfo{}, &types.Error{Code: types.ErrTryAgainLater, Msg: "subnet file " + path + " is missing", Details: advice}
	}
	if err != nil {
		return subnetInfo{}, &types.Error{Code: types.ErrIOFailure, Msg: "subnet file: " + err.Error(), Details: advice}
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSubnetFile))
	if err != nil {
		return subnetInfo{}, &types.Error{Code: types.ErrIOFailure, Msg: "subnet file: " + err.Error(), Details: advice}
	}
	s, err := parseSubnet(raw)
	if err != nil {
		return subnetInfo{}, &types.Error{Code: types.ErrDecodingFailure, Msg: "subnet file " + path + ": " + err.Error(), Details: advice}
	}
	return s, nil
}

// awaitSubnet gives a daemon that is starting the time to write the subnet file: kubelet's own retry of the pod comes
// much later.
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
