package firewall

import (
	"errors"
	"fmt"
	"strings"
)

// remainError means that a variant of iptables holds chains of ours that only its programs can change, and that they are
// not installed here: the image without iptables took over from one that has it, or cleans up after it, or the host
// changed from one variant to the other.
type remainError struct {
	Chains  []string // such as "iptables (nf_tables): nat FLANNEL-POSTRTG"
	Missing []string // the programs: iptables-nft, iptables-legacy
}

func (e *remainError) Error() string {
	return fmt.Sprintf("rules remain in %s, and there is no %s here to remove them: run flanneld cleanup with the image that has "+
		"iptables (without -nftables in its tag), or where that program is installed", strings.Join(e.Chains, ", "), strings.Join(e.Missing, " and no "))
}

// remaining returns a remainError if the variants without programs hold chains of ours, as far as the kernel tells. The
// kernel shows the chains without these programs, but changing them takes the programs. Other errors mean that the kernel
// could not be asked.
func remaining(t tools, owner instance) error {
	var left remainError
	var errs []error
	for _, v := range []variant{variantNFT, variantLegacy} {
		if _, installed := t.suffix[v]; installed {
			continue
		}
		before := len(left.Chains)
		for _, command := range []string{"iptables", "ip6tables"} {
			for _, c := range owner.chains() {
				p := newIPTablesPlace(owner, command, "", v, c.Table)
				found, err := p.hasChain(c.Table, c.Name)
				errs = append(errs, err)
				if found {
					left.Chains = append(left.Chains, p.String()+" "+c.Name)
				}
			}
		}
		if len(left.Chains) > before {
			left.Missing = append(left.Missing, "iptables"+suffixes[v])
		}
	}
	if len(left.Chains) > 0 {
		return &left
	}
	return errors.Join(errs...)
}
