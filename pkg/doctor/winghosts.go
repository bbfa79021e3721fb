package doctor

import "strings"

// networkExists is the code with which HNS refuses a network because of its name.
const networkExists = "0x803b0010"

// noGhosts finds a network of flanneld's that HNS has but does not list, so that
// flanneld can neither use nor create it: one that only the older API lists, or one
// that no list contains, for which the daemon reports an error with networkExists.
// Networks of other programs do not matter.
func noGhosts(s Snapshot) Finding {
	const fix = "Restart HNS (Restart-Service hns -Force) or, if that does not help, the machine. Then restart the pods of this node " +
		"and kube-proxy."
	var others []string
	for _, n := range s.Windows.Ghosts.Value {
		if s.mayBeOurs(n) {
			return fail("flanneld deletes this network within a minute, if it made it. If not: "+fix,
				"only the older API of HNS lists the network %s, of type %s", n.Name, n.Type)
		}
		others = append(others, n.Name)
	}
	if r := s.report(); r != nil && !r.Ready && strings.Contains(r.Problem, networkExists) {
		return fail(fix, "HNS refuses to create flanneld's network with %s, since it has one of this name, which no list contains", networkExists)
	}
	if len(others) > 0 {
		return ok("only the older API of HNS lists %s, of another program", strings.Join(others, ", "))
	}
	return ok("the lists of both APIs agree")
}

// mayBeOurs reports whether a network has the name of one that flanneld makes.
func (s Snapshot) mayBeOurs(n HNSNetwork) bool {
	node := s.node()
	return node != nil && hasDevice(*node, n.Name) || strings.HasPrefix(n.Name, "flannel.") || n.Name == "cbr0" || n.Name == "External"
}
