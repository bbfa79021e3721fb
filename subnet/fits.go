package subnet

import (
	"errors"
	"fmt"
	"net/netip"
)

// Fits returns an error if the subnets of l cannot be those of a node in a network with cfg.
func Fits(cfg Config, l *Lease) error {
	return errors.Join(fits("IPv4", cfg.V4, l.V4.Subnet), fits("IPv6", cfg.V6, l.V6.Subnet),
		cfg.CheckUnderlay(l.V4.Subnet, l.V6.Subnet))
}

func fits(family string, n Network, s netip.Prefix) error {
	switch {
	case !n.On() && !s.IsValid():
		return nil
	case !n.On():
		return fmt.Errorf("subnet %v is set, but %s is disabled", s, family)
	case !s.IsValid():
		return fmt.Errorf("no %s subnet", family)
	case s.Bits() != n.SubnetLen:
		return fmt.Errorf("%v is not a /%d", s, n.SubnetLen)
	case !n.Prefix.Contains(s.Addr()):
		return fmt.Errorf("%v is not in %v", s, n.Prefix)
	case s.Addr().Less(n.Min) || n.Max.Less(s.Addr()):
		return fmt.Errorf("%v is not between %v and %v", s, n.Min, n.Max)
	}
	return nil
}
