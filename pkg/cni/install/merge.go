package install

import (
	"encoding/json"
	"slices"
)

// merge sets the keys and plugins of source in live (the file), and removes those of base
// (what was applied before) that source no longer has. All others are foreign and
// stay. It returns the types of the foreign plugins, in their order. Example:
//
//	base:   flannel(mtu 1400), portmap
//	source: flannel(mtu 1450), bandwidth
//	live:   flannel(mtu 1400, dns), mesh, portmap, tuning
//	merged: flannel(mtu 1450, dns), bandwidth, mesh, tuning; mesh and tuning are foreign
func merge(base, source, live conf) (merged conf, foreign []string) {
	merged.object = mergeObject(base.object, source.object, live.object)
	if source.plugins == nil { // a single plugin (.conf), whose keys are merged by now
		return merged, nil
	}
	merged.plugins, foreign = mergePlugins(base.plugins, source.plugins, live.plugins)
	list, err := json.Marshal(merged.plugins)
	if err != nil || equal(list, live.get("plugins")) { // encoding what was decoded does not fail
		list = live.get("plugins") // keeps its spaces
	}
	merged.object[merged.object.index("plugins")].value = list // it has the key, since source has
	return merged, foreign
}

// mergeObject is merge for the keys of an object.
func mergeObject(base, source, live object) (merged object) {
	for _, m := range live {
		switch want := source.get(m.key); {
		case want != nil:
			m.value = mergeValue(base.get(m.key), want, m.value)
		case base.get(m.key) != nil: // removed from the source
			continue
		}
		merged = append(merged, m)
	}
	for _, m := range source {
		if live.get(m.key) == nil {
			merged = append(merged, m)
		}
	}
	return merged
}

// mergeValue is merge for one value that source and live have: objects are merged
// key by key, of others that of source counts.
func mergeValue(base, source, live json.RawMessage) json.RawMessage {
	var b, s, l object
	if json.Unmarshal(source, &s) == nil && json.Unmarshal(live, &l) == nil {
		_ = json.Unmarshal(base, &b) // may be missing
		if text, err := mergeObject(b, s, l).MarshalJSON(); err == nil {
			source = text
		}
	}
	if equal(source, live) {
		return live
	}
	return source
}

// slot identifies a plugin in a list: the nth of its type, from 0.
type slot struct {
	kind string // the type
	nth  int
}

// slotsOf returns the slots of plugins, in their order.
func slotsOf(plugins []object) (slots []slot) {
	count := map[string]int{}
	for _, p := range plugins {
		kind := p.text("type")
		slots = append(slots, slot{kind, count[kind]})
		count[kind]++
	}
	return slots
}

// mergePlugins leaves foreign plugins where they are in live. Ours take the places
// that ours have in live, in the order of source. If source has more, the rest
// follows the last of these places, before what others appended; if live has none
// of ours, they come first.
func mergePlugins(base, source, live []object) (merged []object, foreign []string) {
	baseSlots, sourceSlots, liveSlots := slotsOf(base), slotsOf(source), slotsOf(live)
	ours := make([]object, len(source))
	for i, p := range source {
		ours[i] = p
		if at := slices.Index(liveSlots, sourceSlots[i]); at >= 0 {
			var applied object
			if n := slices.Index(baseSlots, sourceSlots[i]); n >= 0 {
				applied = base[n]
			}
			ours[i] = mergeObject(applied, p, live[at])
		}
	}
	places := 0
	for _, s := range liveSlots {
		if slices.Contains(sourceSlots, s) {
			places++
		}
	}
	if places == 0 { // below, no case takes from ours then
		merged, ours = append(merged, ours...), nil
	}
	for i, s := range liveSlots {
		switch {
		case slices.Contains(sourceSlots, s):
			count := 1
			if places--; places == 0 { // the last place of ours
				count = len(ours)
			}
			merged, ours = append(merged, ours[:count]...), ours[count:]
		case slices.Contains(baseSlots, s): // removed from the source
		default:
			merged, foreign = append(merged, live[i]), append(foreign, s.kind)
		}
	}
	return merged, foreign
}
