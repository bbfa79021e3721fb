package doctor

// sameAtStart only warns: the interface in use works, until flanneld starts again.
func sameAtStart(s Snapshot) Finding {
	n := s.node()
	if n.Underlay.AtStart != "" {
		return warn("Set --iface="+n.Underlay.Name+" on this node. If no flag selects the underlay, it is also enough to give the default route of "+
			n.Underlay.AtStart+" a metric that is higher than that of "+n.Underlay.Name+".",
			"%s is in use, and a start would choose %s", n.Underlay.Name, n.Underlay.AtStart)
	}
	return ok("%s", n.Underlay.Name)
}
