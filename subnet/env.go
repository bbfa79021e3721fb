package subnet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"flannel/pkg/file"
)

// Env is the content of the subnet file (subnet.env). The last part of each pass writes it; the CNI plugin, commands
// and the next start of the daemon read it.
type Env struct {
	V4Network, V4Subnet netip.Prefix // masked; zero: family off
	V6Network, V6Subnet netip.Prefix
	// FormerV4 and FormerV6 are the last subnets that this node had before, the latest first. Pods and their bridge may
	// still have addresses of them, and the node takes one again if the configuration returns to its network.
	FormerV4, FormerV6 []netip.Prefix
	MTU                int  // of the pods' interfaces, in bytes
	IPMasq             bool // --ip-masq, by which the CNI plugin decides whether its delegate masquerades
}

// IsZero reports whether e has no subnet, as ReadEnv returns it for a missing file.
func (e Env) IsZero() bool { return !e.V4Subnet.IsValid() && !e.V6Subnet.IsValid() }

// maxEnv bounds what is read of the file, which others may have written, in bytes.
const maxEnv = 64 << 10

// format returns the file's text, as flannel writes it, with our own keys at the end. A subnet is written as its first
// usable address, which the bridge gets.
func format(e Env) []byte {
	var b bytes.Buffer
	for _, f := range []struct {
		networkKey, subnetKey string
		network, subnet       netip.Prefix
	}{
		{"FLANNEL_NETWORK", "FLANNEL_SUBNET", e.V4Network, e.V4Subnet},
		{"FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET", e.V6Network, e.V6Subnet},
	} {
		if f.network.IsValid() && f.subnet.IsValid() {
			first := netip.PrefixFrom(f.subnet.Masked().Addr().Next(), f.subnet.Bits())
			fmt.Fprintf(&b, "%s=%s\n%s=%s\n", f.networkKey, f.network, f.subnetKey, first)
		}
	}
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=%t\n", e.MTU, e.IPMasq)
	for _, f := range []struct {
		key     string
		subnets []netip.Prefix
	}{{formerKey4, e.FormerV4}, {formerKey6, e.FormerV6}} {
		if len(f.subnets) > 0 {
			fmt.Fprintf(&b, "%s=%s\n", f.key, joinPrefixes(f.subnets))
		}
	}
	return b.Bytes()
}

// joinPrefixes returns networks as a value in the subnet file.
func joinPrefixes(prefixes []netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// flannel does not have these keys, and ignores them.
const formerKey4, formerKey6 = "FLANNEL_FORMER_SUBNET", "FLANNEL_FORMER_IPV6_SUBNET"

// parseEnv parses a text of format or of flannel; others may have put quotes around values. It skips unknown lines. A
// text without any subnet is an error.
func parseEnv(raw []byte) (Env, error) {
	var e Env
	for line := range strings.Lines(string(raw)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		value = strings.Trim(value, `"'`)
		var err error
		switch key {
		case "FLANNEL_NETWORK":
			e.V4Network, err = envPrefix(value, 32)
		case "FLANNEL_SUBNET":
			e.V4Subnet, err = envPrefix(value, 32)
		case "FLANNEL_IPV6_NETWORK":
			e.V6Network, err = envPrefix(value, 128)
		case "FLANNEL_IPV6_SUBNET":
			e.V6Subnet, err = envPrefix(value, 128)
		case formerKey4:
			e.FormerV4, err = envPrefixes(value, 32)
		case formerKey6:
			e.FormerV6, err = envPrefixes(value, 128)
		case "FLANNEL_MTU":
			if e.MTU, err = strconv.Atoi(value); err != nil {
				err = errors.New("not a whole number")
			}
		case "FLANNEL_IPMASQ":
			if e.IPMasq, err = strconv.ParseBool(value); err != nil {
				err = errors.New("neither true nor false")
			}
		}
		if err != nil {
			return Env{}, fmt.Errorf("%s=%.60q: %w", key, value, err)
		}
	}
	if e.IsZero() {
		return Env{}, errors.New("no FLANNEL_SUBNET and no FLANNEL_IPV6_SUBNET")
	}
	return e, nil
}

// envPrefix parses a network and masks it. bits is the length of an address of the family. Of several networks,
// separated by commas, it takes the first: flannel's format allows a list.
func envPrefix(value string, bits int) (netip.Prefix, error) {
	first, _, _ := strings.Cut(value, ",")
	p, err := netip.ParsePrefix(strings.TrimSpace(first))
	if err != nil || p.Addr().BitLen() != bits || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("not an IPv%d network", map[int]int{32: 4, 128: 6}[bits])
	}
	return p.Masked(), nil
}

// envPrefixes parses a list of networks, separated by commas, of which it takes the first maxFormer.
func envPrefixes(value string, bits int) (prefixes []netip.Prefix, err error) {
	for item := range strings.SplitSeq(value, ",") {
		p, err := envPrefix(item, bits)
		if err != nil {
			return nil, err
		}
		if len(prefixes) < maxFormer {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

// maxFormer is how many former subnets of a family the file has at most.
const maxFormer = 4

// Remembered returns the subnets that the file remembers for the networks of cfg: for each family the present one, or, if
// only former ones are in the network, the latest of them. The zero Prefix: the file has none. If no subnet is in the
// network, the present one is returned even so; Acquire does not lease it.
func (e Env) Remembered(cfg Config) (v4, v6 netip.Prefix) {
	choose := func(n Network, present netip.Prefix, former []netip.Prefix) netip.Prefix {
		if i := slices.IndexFunc(former, n.Holds); !n.Holds(present) && i >= 0 {
			return former[i]
		}
		return present
	}
	return choose(cfg.V4, e.V4Subnet, e.FormerV4), choose(cfg.V6, e.V6Subnet, e.FormerV6)
}

// Former returns the former subnets for the next file, in which the node has the subnets of next: those of e that are
// not in next, the latest first.
func (e Env) Former(next Lease) (v4, v6 []netip.Prefix) {
	list := func(present netip.Prefix, former []netip.Prefix, next netip.Prefix) (subnets []netip.Prefix) {
		for _, s := range append([]netip.Prefix{present}, former...) {
			if s.IsValid() && s != next && !slices.Contains(subnets, s) && len(subnets) < maxFormer {
				subnets = append(subnets, s)
			}
		}
		return subnets
	}
	return list(e.V4Subnet, e.FormerV4, next.V4.Subnet), list(e.V6Subnet, e.FormerV6, next.V6.Subnet)
}

// ErrDirGone is wrapped by an error of WriteEnv: the directory of the file was deleted, and the process has only the
// mount of it, so that no later call succeeds.
var ErrDirGone = file.ErrDirGone

// ErrMalformed is wrapped by the error about a file that is not a valid subnet file, or whose owner is not trusted
// (file.Unusable).
var ErrMalformed = errors.New("not a subnet file")

// ReadEnv reads the file at path. For a missing file it returns the zero Env and no error. An error without
// ErrMalformed is one of reading, and says nothing about the content.
func ReadEnv(path string) (Env, error) {
	f, err := file.OpenTrusted(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Env{}, nil
	}
	if err != nil {
		return Env{}, openError(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxEnv))
	if err != nil {
		return Env{}, fmt.Errorf("read subnet file: %w", err)
	}
	e, err := parseEnv(raw)
	if err != nil {
		return Env{}, fmt.Errorf("read %s: %w: %w", path, ErrMalformed, err)
	}
	return e, nil
}

// openError is the error of ReadEnv about a file that file.OpenTrusted has not opened.
func openError(err error) error {
	if file.Unusable(err) {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return fmt.Errorf("read subnet file: %w", err)
}

// WriteEnv writes e to the file at path, if its content differs, and reports whether it did. Readers see the old text
// or the new one, never a part. A missing directory is created. After an error, the next pass of the loop calls it
// again.
func WriteEnv(path string, e Env) (changed bool, err error) {
	text := format(e)
	if old, err := file.ReadTrusted(path); err == nil && bytes.Equal(old, text) { // a file that cannot be read is replaced
		return false, nil
	}
	if err := file.MkdirAll(filepath.Dir(path)); err != nil {
		return false, fmt.Errorf("write subnet file: %w", err)
	}
	if err := file.Replace(path, text); err != nil {
		return false, fmt.Errorf("write subnet file: %w", err)
	}
	return true, nil
}
