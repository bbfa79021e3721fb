package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// writeHosts writes /etc/hosts of every node, so that `ping node2` and `ping
// pod2` work there. The caller holds podsMu, except in New.
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

// Join returns the valid addresses or prefixes among those given, separated by
// spaces.
func Join[T interface {
	IsValid() bool
	String() string
}](values ...T) string {
	var s []string
	for _, a := range values {
		if a.IsValid() {
			s = append(s, a.String())
		}
	}
	return strings.Join(s, " ")
}
