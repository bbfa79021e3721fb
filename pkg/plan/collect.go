package plan

import (
	"slices"

	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// collect goes through all peers.
func (p *Plan) collect(lost map[*peer]string) (paths []*dataplane.Path, rejects []subnet.Rejected) {
	n := 0
	for _, one := range p.peers {
		n += len(one.paths)
	}
	paths, starts := make([]*dataplane.Path, 0, n), make([]int, 0, len(p.peers))
	for _, one := range p.peers {
		reason := one.reason
		if reason == "" && lost != nil {
			reason = lost[one]
		}
		if reason != "" {
			rejects = append(rejects, subnet.Rejected{Name: one.lease.Name, Reason: reason, Local: one.local})
			continue
		}
		starts = append(starts, len(paths))
		paths = append(paths, one.paths...)
	}
	p.paths, p.starts = paths, starts
	if len(rejects) > 0 {
		p.starts = nil
	}
	return paths, rejects
}

// splice puts the paths of fresh in the place of those of the peers from head to end, when nobody is left out. To
// copy a list is much faster than to ask each of ten thousand peers.
func (p *Plan) splice(head, end int, fresh []*peer) {
	at := func(i int) int {
		if i == len(p.starts) {
			return len(p.paths)
		}
		return p.starts[i]
	}
	from, to := at(head), at(end)
	var middle []*dataplane.Path
	var starts []int
	for _, one := range fresh {
		starts = append(starts, from+len(middle))
		middle = append(middle, one.paths...)
	}
	for i := end; i < len(p.starts); i++ {
		p.starts[i] += len(middle) - (to - from)
	}
	p.starts = slices.Replace(p.starts, head, end, starts...)
	p.paths = slices.Concat(p.paths[:from], middle, p.paths[to:])
}
