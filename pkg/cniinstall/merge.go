package cniinstall

import (
	"encoding/json"
	"slices"
)

// merge makes live say what source says, as kubectl apply does: keys and plugins of source are set, those of base (what
// was applied before) that source no longer has are removed, and all others are somebody else's and stay. It returns
// the types of the plugins that stay, in their order.
func merge(base, source, live conf) (merged conf, foreign []string) {
	merged.object = mergeObject(base.object, source.object, live.object)
	if source.plugins == nil {
		return merged, nil
	}
	merged.plugins, foreign = mergePlugins(base.plugins, source.plugins, live.plugins)
	list, err := json.Marshal(merged.plugins)
	if err != nil || equal(list, live.get("plugins")) { // its parts were parsed before: there is no error
		list = live.get("plugins")
	}
	merged.object[merged.object.index("plugins")].value = list
	return merged, foreign
}

func mergeObject(base, source, live object) (merged object) {
	for _, m := range live {
		switch want := source.get(m.key); {
		case want != nil:
			m.value = mergeValue(base.get(m.key), want, m.value)
		case base.get(m.key) != nil:
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

func mergeValue(base, source, live json.RawMessage) json.RawMessage {
	var b, s, l object
	if json.Unmarshal(source, &s) == nil && json.Unmarshal(live, &l) == nil {
		_ = json.Unmarshal(base, &b) // there may be none
		source = mustEncode(mergeObject(b, s, l), source)
	}
	if equal(source, live) {
		return live
	}
	return source
}

// mustEncode falls back to a text that is known to be good; encoding what was decoded does not fail.
func mustEncode(o object, otherwise json.RawMessage) json.RawMessage {
	if text, err := o.MarshalJSON(); err == nil {
		return text
	}
	return otherwise
}

// slot identifies a plugin in a list: the nth of its type.
type slot struct {
	kind string
	nth  int
}

func slots(plugins []object) (all []slot) {
	count := map[string]int{}
	for _, p := range plugins {
		kind := p.text("type")
		all = append(all, slot{kind, count[kind]})
		count[kind]++
	}
	return all
}

// mergePlugins keeps foreign plugins where they are among ours. Ours take the places that they had, in the order of
// source; those without a place follow the last one, before what others have appended.
func mergePlugins(base, source, live []object) (merged []object, foreign []string) {
	want, had, have := slots(source), slots(base), slots(live)
	ours := make([]object, len(source))
	for i, p := range source {
		ours[i] = p
		if at := slices.Index(have, want[i]); at >= 0 {
			var before object
			if was := slices.Index(had, want[i]); was >= 0 {
				before = base[was]
			}
			ours[i] = mergeObject(before, p, live[at])
		}
	}
	places := 0
	for _, s := range have {
		if slices.Contains(want, s) {
			places++
		}
	}
	if places == 0 {
		merged, ours = append(merged, ours...), nil
	}
	for i, s := range have {
		switch {
		case slices.Contains(want, s):
			take := 1
			if places--; places == 0 {
				take = len(ours)
			}
			merged, ours = append(merged, ours[:take]...), ours[take:]
		case slices.Contains(had, s): // ours once, and no longer
		default:
			merged, foreign = append(merged, live[i]), append(foreign, s.kind)
		}
	}
	return merged, foreign
}
