package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// writeHosts lets people who play say `ping node2` or `ping pod2`. The caller holds podsMu.
func (l *Lab) writeHosts() error {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	name := func(name string, addrs ...netip.Addr) {
		for _, a := range addrs {
			if a.IsValid() {
				fmt.Fprintf(&b, "%s %s\n", a, name)
			}
		}
	}
	for _, n := range l.Nodes {
		name(n.Name, n.IP4, n.IP6)
		for _, p := range slices.Sorted(maps.Keys(n.pods)) {
			name(p, n.pods[p].IP4, n.pods[p].IP6)
		}
	}
	var errs []error
	for _, n := range l.Nodes {
		errs = append(errs, n.WriteFile("/etc/hosts", b.String()))
	}
	return errors.Join(errs...)
}

// Join writes the addresses or prefixes that there are.
func Join[T interface {
	IsValid() bool
	String() string
}](all ...T) string {
	var s []string
	for _, a := range all {
		if a.IsValid() {
			s = append(s, a.String())
		}
	}
	return strings.Join(s, " ")
}
