//go:build linux

package firewall

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// RemainError means that iptables holds chains of ours that only its programs can change, and that they are not
// installed here: the image without iptables took over from one that has it, or cleans up after it.
type RemainError struct {
	Chains []string // such as "iptables (nft): nat FLANNEL-POSTRTG"
}

func (e *RemainError) Error() string {
	return fmt.Sprintf("rules remain in %s, and iptables is not installed here to remove them: run flanneld cleanup with the image that has "+
		"iptables (without -nftables in its tag), or on a host with iptables 1.8 or later", strings.Join(e.Chains, ", "))
}

// remaining returns a RemainError if the variants without programs hold chains of ours, as far as the kernel tells.
func remaining(t tools, owner instance) error {
	var left []string
	var errs []error
	for _, v := range []variant{variantNFT, variantLegacy} {
		if _, installed := t.suffix[v]; installed {
			continue
		}
		for _, command := range []string{"iptables", "ip6tables"} {
			for _, c := range owner.chains() {
				p := newIPTablesPlace(owner, command, "", v, c.Table)
				if v == variantLegacy && !legacyTableExists(command, c.Table) {
					continue
				}
				found, err := p.hasChain(c.Table, c.Name)
				errs = append(errs, err)
				if found {
					left = append(left, p.String()+" "+c.Name)
				}
			}
		}
	}
	if len(left) > 0 {
		return &RemainError{Chains: left}
	}
	return errors.Join(errs...)
}

// legacyTableExists reports whether the kernel has a table of the legacy variant. Asking for the table itself would make
// the kernel create it.
func legacyTableExists(command, table string) bool {
	names, _ := os.ReadFile("/proc/net/" + strings.Replace(command, "tables", "_tables", 1) + "_names") // missing: without the module
	return slices.Contains(strings.Fields(string(names)), table)
}
