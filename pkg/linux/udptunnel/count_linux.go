package udptunnel

// add counts packets.
func (t *traffic) add(packets, bytes int) {
	t.packets.Add(uint64(packets))
	t.bytes.Add(uint64(bytes))
}

func (c *Counters) drop(d dropReason) { c.dropped[d].Add(1) }
