package firewall

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"flannel/pkg/firewall"
)

// omitted says which parts of our rules the kernel or iptables refuses, although the rules work without them.
type omitted struct {
	random  bool // masquerading with random source ports
	comment bool // a chain of ours is known by its name, and a jump by the chain it leads to
}

// from returns a copy of want without what is omitted.
func (o omitted) from(want []firewall.Chain) []firewall.Chain {
	plain := slices.Clone(want)
	for i, c := range want {
		plain[i].Rules = slices.Clone(c.Rules)
		if o.comment {
			plain[i].Comment = ""
		}
		for j := range c.Rules {
			plain[i].Rules[j].RandomFully = c.Rules[j].RandomFully && !o.random
		}
	}
	return plain
}

// syncPlace syncs a place, for reconcile. If the kernel or iptables refuses the rules, it tries them without each part
// that is not essential, then without all of these parts. Once rules with less are written, it tries the whole rules
// again, because iptables exits alike for what the kernel does not support and for what it could not do at that moment.
// What had to be omitted is omitted everywhere from then on.
func (f *Firewall) syncPlace(ctx context.Context, s *placeState) (changed int, err error) {
	sync := func(want []firewall.Chain) error {
		n, err := s.sync(ctx, want)
		changed = max(changed, n)
		return err
	}
	err = sync(s.want)
	if !errors.Is(err, errRefused) {
		return changed, err
	}
	for _, less := range []omitted{{comment: true}, {random: true}, {comment: true, random: true}} {
		less = omitted{comment: less.comment || f.omitted.comment, random: less.random || f.omitted.random}
		if ctx.Err() != nil {
			break
		}
		if sync(less.from(s.want)) != nil {
			continue
		}
		if err := sync(s.want); !errors.Is(err, errRefused) { // accepted now, or not known
			return changed, err
		}
		f.log.Warn("rules are refused, writing them without what is not essential", "where", s.String(),
			"random_fully", !less.random, "comments", !less.comment, "err", err)
		f.omitted = less
		for _, s := range f.places {
			s.want = less.from(s.want)
		}
		return changed, nil
	}
	return changed, err // of the first sync: none of the parts was the reason
}

// extensions finds the name of an extension in what iptables says if iptables or the kernel lacks it:
//
//	Couldn't load match `comment':No such file or directory
//	Extension comment revision 0 not supported, missing kernel module?
var extensions = regexp.MustCompile("(?:Couldn't load (?:match|target) [`']|Extension )(\\w+)")

// extensionAdvice says what can be done about rules that iptables refused.
func extensionAdvice(v variant, said string) string {
	if v == variantLegacy && strings.Contains(said, "unable to initialize table") {
		return "the kernel may lack the tables of iptables-legacy: load iptable_nat and iptable_filter (for IPv6 ip6table_nat and " +
			"ip6table_filter), let plain iptables be the nft variant, or set EnableNFTables"
	}
	modules := "xt_mark, xt_MASQUERADE"
	if m := extensions.FindStringSubmatch(said); m != nil {
		modules = "xt_" + m[1]
	}
	if v == variantNFT {
		modules += ", nft_compat"
	}
	return "is a module of the kernel missing? The rules need " + modules +
		", which are in the package kernel-modules-extra on RHEL and its relatives: install it, or set EnableNFTables"
}

// nftAdvice is extensionAdvice for the writer NFTables; "" if no module can be the reason.
func nftAdvice(err error) string {
	if !absent(err) {
		return ""
	}
	return ": if no rules can be written, load the kernel's modules nf_tables, nft_chain_nat and nft_masq (before Linux 5.2, the last two " +
		"have the suffix _ipv4 or _ipv6), or unset EnableNFTables"
}
