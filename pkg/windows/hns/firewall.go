package hns

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Firewall is the Windows Firewall, as firewall_windows.go and the simulated machine implement it. Its calls may hang,
// such as when its service is starting: use FirewallClient.
type Firewall interface {
	// FirewallProfiles returns the active profiles: one for each category of the networks to which the host is connected.
	FirewallProfiles() ([]FirewallProfile, error)
	// FirewallRules returns the inbound rules for UDP and for any protocol, also those that are not enabled.
	FirewallRules() ([]FirewallRule, error)
	// AddFirewallRule adds an inbound rule. Names of rules need not be unique.
	AddFirewallRule(FirewallRule) error
	// RemoveFirewallRule removes a rule with this name. If there is none, that is no error.
	RemoveFirewallRule(name string) error
}

// Profiles of the Windows Firewall (NET_FW_PROFILE_TYPE2); a rule has the sum of several.
const (
	DomainProfile  = 1
	PrivateProfile = 2
	PublicProfile  = 4
	AllProfiles    = 0x7fffffff

	sumOfProfiles = DomainProfile | PrivateProfile | PublicProfile // what Windows may make of AllProfiles
)

// FirewallProfile is the state of a profile.
type FirewallProfile struct {
	Type      int  // DomainProfile, PrivateProfile or PublicProfile
	On        bool // packets are filtered
	BlocksAll bool // all inbound packets are blocked, even those that a rule allows
	Allows    bool // the default action for inbound packets that no rule matches is to allow
}

// FirewallRule is an inbound rule.
type FirewallRule struct {
	Name     string
	Enabled  bool
	Allow    bool   // false: it blocks
	Protocol int    // UDP or AnyProtocol
	Ports    string // local ones, as "4789,8000-8010"; "*" or "": all
	Profiles int    // a sum
	Limited  bool   // it applies to some programs, services, addresses or interfaces alone, or that cannot be read
}

// UnreadFirewallRule returns a rule whose name alone could be read: it may block packets, and is not known to allow any.
func UnreadFirewallRule(name string) FirewallRule {
	return FirewallRule{Name: name, Enabled: true, Protocol: AnyProtocol, Profiles: AllProfiles, Limited: true}
}

// Protocols of a FirewallRule.
const (
	UDP         = 17
	AnyProtocol = 256
)

// VXLANRuleName is the name of the rule by which the Windows Firewall accepts the packets of an overlay.
const VXLANRuleName = "flanneld VXLAN"

// vxlanRule returns the rule for a port. It is for all profiles, since Windows may take the network of a new virtual
// switch for another one than that of the adapter.
func vxlanRule(port uint16) FirewallRule {
	return FirewallRule{Name: VXLANRuleName, Enabled: true, Allow: true, Protocol: UDP, Ports: strconv.Itoa(int(port)), Profiles: AllProfiles}
}

// FirewallClient calls the Windows Firewall, for the daemon (package node), the doctor and cleanup. No method takes
// longer than the limit.
type FirewallClient struct {
	calls Firewall
	limit time.Duration
}

// NewFirewallClient returns a client. A call that takes longer than the limit is abandoned; what it does may come later.
func NewFirewallClient(calls Firewall, limit time.Duration) *FirewallClient {
	return &FirewallClient{calls, limit}
}

// AllowVXLAN leaves one rule VXLANRuleName, which allows the port. It reports whether it changed something, also with an
// error.
func (c *FirewallClient) AllowVXLAN(ctx context.Context, port uint16) (changed bool, err error) {
	return bounded(ctx, c.limit, func(ctx context.Context) (changed bool, err error) {
		same, err := sameName(c.calls, VXLANRuleName)
		if err != nil || len(same) == 1 && same[0] == vxlanRule(port) {
			return false, err
		}
		if removed, err := removeAll(ctx, c.calls, same); err != nil {
			return removed, err
		}
		if ctx.Err() != nil { // the caller has gone
			return len(same) > 0, context.Cause(ctx)
		}
		return true, c.calls.AddFirewallRule(vxlanRule(port))
	})
}

// HasVXLANRule reports whether there is a rule VXLANRuleName.
func (c *FirewallClient) HasVXLANRule(ctx context.Context) (bool, error) {
	return bounded(ctx, c.limit, func(context.Context) (bool, error) {
		same, err := sameName(c.calls, VXLANRuleName)
		return len(same) > 0, err
	})
}

// RemoveVXLANRule removes the rules VXLANRuleName, and reports whether there was one.
func (c *FirewallClient) RemoveVXLANRule(ctx context.Context) (removed bool, err error) {
	return bounded(ctx, c.limit, func(ctx context.Context) (removed bool, err error) {
		same, err := sameName(c.calls, VXLANRuleName)
		if err != nil {
			return false, err
		}
		return removeAll(ctx, c.calls, same)
	})
}

// State returns the active profiles, and the inbound rules for UDP and for any protocol.
func (c *FirewallClient) State(ctx context.Context) (profiles []FirewallProfile, rules []FirewallRule, err error) {
	type state struct {
		profiles []FirewallProfile
		rules    []FirewallRule
	}
	s, err := bounded(ctx, c.limit, func(context.Context) (s state, err error) {
		if s.profiles, err = c.calls.FirewallProfiles(); err == nil {
			s.rules, err = c.calls.FirewallRules()
		}
		return s, err
	})
	return s.profiles, s.rules, err
}

// removeAll removes rules that have the same name: the firewall removes one of a name in each call, and does not say
// which. It reports whether it removed one.
func removeAll(ctx context.Context, calls Firewall, same []FirewallRule) (removed bool, err error) {
	if len(same) == 0 {
		return false, nil
	}
	name := same[0].Name
	for range same {
		if ctx.Err() != nil {
			return removed, context.Cause(ctx)
		}
		if err := calls.RemoveFirewallRule(name); err != nil {
			return removed, err
		}
		removed = true
	}
	left, err := sameName(calls, name)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the firewall keeps rules of the name %q", name)
	}
	return removed, err
}

// sameName returns the rules of a name.
func sameName(calls Firewall, name string) (same []FirewallRule, err error) {
	rules, err := calls.FirewallRules()
	for _, r := range rules {
		if r.Profiles&sumOfProfiles == sumOfProfiles {
			r.Profiles = AllProfiles // Windows may read it back as their sum
		}
		if r.Name == name {
			same = append(same, r)
		}
	}
	return same, err
}

// bounded calls f in a goroutine of its own, because a call that hangs cannot be cancelled, and waits for it until limit
// or the end of ctx. After that, the call continues, and the result of f is dropped. The context of f has ended then: f
// makes no further call that changes something.
func bounded[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w (%s)", ErrTimeout, limit))
	defer cancel()
	done := make(chan answer, 1) // with a buffer, so that the goroutine of an abandoned call ends
	go func() {
		v, err := f(ctx)
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}
