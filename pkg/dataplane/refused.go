package dataplane

import (
	"errors"

	"flannel/pkg/reconcile"
)

// AttributeRefusals finds the paths to which the refused entries in err belong. keys
// returns the keys of a path's entries; of several refused ones, the first gives
// the reason. atPath reports whether the content of an entry is the reason for
// its refusal. rest is err without the refusals that belong to paths.
func AttributeRefusals(err error, paths []*Path, atPath func(error) bool, keys func(*Path) []any) (refused []Refused, rest error) {
	if err == nil {
		return nil, nil
	}
	reasons := map[any]error{}
	reconcile.TakeRefusals(err, func(r *reconcile.RefusedError, e reconcile.Refusal) bool {
		if !reconcile.IsUnknown(e.Err) && atPath(e.Err) {
			reasons[e.Key] = r.Describe(e)
		}
		return false
	})
	if len(reasons) == 0 {
		return nil, err
	}
	ofPath := map[any]bool{}
	for _, p := range paths {
		var reason error
		for _, key := range keys(p) {
			if why, found := reasons[key]; found {
				ofPath[key] = true
				if reason == nil {
					reason = why
				}
			}
		}
		if reason != nil {
			refused = append(refused, Refused{Dst: p.Dst, Err: reason})
		}
	}
	return refused, errors.Join(reconcile.TakeRefusals(err, func(_ *reconcile.RefusedError, e reconcile.Refusal) bool {
		return ofPath[e.Key]
	})...)
}
