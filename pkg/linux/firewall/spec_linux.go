package firewall

import (
	"fmt"
	"net/netip"

	"flannel/pkg/firewall"
)

// spec returns a rule as arguments of iptables, in the order in which iptables-save prints them. Addresses come as
// netip.Prefix and comments are constants, so no text from a peer or a configuration can add a word to a script.
func spec(r firewall.Rule, comment string) string {
	text := addressSpec("-s ", r.NotSrc, r.Src) + addressSpec("-d ", r.NotDst, r.Dst)
	if r.Mark != 0 {
		text += fmt.Sprintf("-m mark --mark %#x/%#x ", r.Mark, r.Mark)
	}
	text += commentSpec(comment) + "-j " + string(r.Verdict)
	if r.RandomFully {
		text += " --random-fully"
	}
	return text
}

func addressSpec(flag string, not bool, p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return ""
	case not:
		flag = "! " + flag
	}
	return flag + p.String() + " "
}

// jumpTo returns the arguments of the rule in the parent chain that jumps to c.
func jumpTo(c firewall.Chain) string {
	return commentSpec(c.Comment) + "-j " + c.Name
}

// commentSpec returns the options that add a comment; "": there is none.
func commentSpec(comment string) string {
	if comment == "" {
		return ""
	}
	return fmt.Sprintf("-m comment --comment %q ", comment)
}
