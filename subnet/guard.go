package subnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/conf"
)

// Guard says what happens to packets into the pod network that no node and no pod of
// the cluster would send. pkg/linux/guard does it; Windows has none. In Config it is one
// of the constants; "" in other places is explained there.
type Guard string

const (
	GuardOff     Guard = "off"     // they are accepted, as with flannel
	GuardAudit   Guard = "audit"   // they are accepted and counted
	GuardEnforce Guard = "enforce" // they are counted and dropped
)

// guards are all values.
var guards = []Guard{GuardOff, GuardAudit, GuardEnforce}

// ParseGuard parses the name of a mode.
func ParseGuard(name string) (Guard, error) {
	if g := Guard(strings.ToLower(name)); slices.Contains(guards, g) {
		return g, nil
	}
	return "", fmt.Errorf("%.40q is unknown; use off, audit or enforce", name)
}

// readGuard reads what concerns the guard, records problems in root, and sets the fields of
// c. The keys are beside the object Backend or in it. Of both places, those in it count, and
// there is a problem.
func (c *Config) readGuard(root *conf.Object) {
	const guard, trial, sources = "Guard", "GuardTrial", "GuardSources"
	within := func(o *conf.Object) bool { return o.Has(guard) || o.Has(trial) || o.Has(sources) }
	o := root
	if backend := root.Object("Backend"); within(backend) {
		if within(root) {
			root.Problem(guard, "%s, %s and %s are both beside Backend and in it; give them in one place", guard, trial, sources)
		}
		o = backend
	}
	var err error
	if c.Guard, err = ParseGuard(o.String(guard, string(GuardAudit))); err != nil {
		o.Problem(guard, "%v", err)
	}
	c.GuardTrial = time.Duration(o.Int(trial, 60, 0, 86400)) * time.Second // a minute by default, at most a day
	for _, text := range o.Strings(sources) {
		p, err := netip.ParsePrefix(text) // fails for an address, which is tried next
		if a, errAddr := netip.ParseAddr(text); errAddr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			o.Problem(sources, "%.40q is neither an address nor a network; use one like 192.0.2.7 or 192.0.2.0/24", text)
			continue
		}
		c.GuardSources = append(c.GuardSources, p.Masked())
	}
}
