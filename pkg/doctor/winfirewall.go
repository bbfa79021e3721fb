package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// WinFirewall is the Windows Firewall, as machine.readFirewall of pkg/probe has read it.
type WinFirewall struct {
	Profiles []FirewallProfile `json:"profiles"` // that are active
	Rules    []FirewallRule    `json:"rules"`    // enabled ones for inbound UDP packets to the VXLAN port of an overlay, or to the default one
}

// FirewallProfile is a profile of the Windows Firewall.
type FirewallProfile struct {
	Name      string `json:"name"` // "Domain", "Private", "Public"
	Type      int    `json:"type"` // a bit of FirewallRule.Profiles
	On        bool   `json:"on"`
	BlocksAll bool   `json:"blocksAll"` // all inbound packets are blocked, even those that a rule allows
	Allows    bool   `json:"allows"`    // the default action for inbound packets that no rule matches is to allow
}

// FirewallRule is a rule of the Windows Firewall.
type FirewallRule struct {
	Name     string `json:"name"`
	Allow    bool   `json:"allow"`    // false: it blocks
	Ports    string `json:"ports"`    // "4789,8000-8010"; "" or "*": all
	Profiles int    `json:"profiles"` // a sum of types
	Limited  bool   `json:"limited"`  // it applies to some programs, services, addresses or interfaces only, or cannot be read
}

// HasPort reports whether a rule is for a port. pkg/probe calls it, too, to choose the Rules.
func (r FirewallRule) HasPort(port int) bool {
	if r.Ports == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(r.Ports, ","), func(text string) bool {
		if text = strings.TrimSpace(text); text == "*" {
			return true
		}
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		low, err1 := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		return err1 == nil && err2 == nil && low <= port && port <= high // others are names, such as RPC
	})
}

// vxlanPortOpen is the check FL520: it finds an active profile in which the
// firewall drops the packets of other nodes. In Windows, a rule that blocks
// takes precedence. The check only runs if flanneld's overlay and the firewall could be
// read (see its needs in windows.go).
func vxlanPortOpen(s Snapshot) Finding {
	network, _, _ := s.hns()                  // _: it is an overlay, and it was found; see needs
	port := cmp.Or(network.Port, windowsPort) // 0: the default port
	profiles := s.Windows.Firewall.Value.Profiles
	if len(profiles) == 0 {
		return undecidable("no profile of the Windows Firewall is active")
	}
	var reasons, closed []string
	for _, p := range profiles {
		if open, reason := s.Windows.Firewall.Value.accepts(p, port); open {
			reasons = appendOnce(reasons, reason)
		} else {
			closed = append(closed, fmt.Sprintf("in the profile %s, %s", p.Name, reason))
		}
	}
	if len(closed) > 0 {
		return warn(fmt.Sprintf("Run flanneld prepare, which adds a rule, or allow inbound UDP to port %d. If a rule blocks it, "+
			"or a group policy sets the rules, change that. This check may not see the rules of group policies.", port),
			"the Windows Firewall drops UDP packets to port %d: %s", port, several(closed))
	}
	return ok("the Windows Firewall accepts UDP packets to port %d: %s", port, strings.Join(reasons, "; "))
}

// accepts reports whether the firewall accepts UDP packets to a port in a profile, and why.
func (w WinFirewall) accepts(p FirewallProfile, port int) (open bool, reason string) {
	// rule returns the first rule of the profile for the port that allows, or blocks, and is limited, or not.
	rule := func(allow, limited bool) (name string, found bool) {
		i := slices.IndexFunc(w.Rules, func(r FirewallRule) bool {
			return r.Allow == allow && r.Limited == limited && r.Profiles&p.Type != 0 && r.HasPort(port)
		})
		if i < 0 {
			return "", false
		}
		return w.Rules[i].Name, true
	}
	if !p.On {
		return true, "the Windows Firewall is off in the profile " + p.Name
	}
	if p.BlocksAll {
		return false, "the Windows Firewall blocks all inbound packets"
	}
	if name, found := rule(false, false); found { // blocks, and not only some
		return false, fmt.Sprintf("the rule %q blocks UDP port %d", name, port)
	}
	if name, found := rule(true, false); found { // allows, and not only some
		reason = fmt.Sprintf("the rule %q allows UDP port %d", name, port)
	} else if p.Allows {
		reason = "the default action for inbound packets is to allow them in the profile " + p.Name
	} else {
		return false, fmt.Sprintf("no rule allows UDP port %d", port)
	}
	if name, found := rule(false, true); found { // may block some
		reason += fmt.Sprintf("; the rule %q, which is limited or cannot be read, may block some packets", name)
	}
	return true, reason
}
