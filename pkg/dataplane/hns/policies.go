package hns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// policyStore are the policies of our network that lead to peers, and the one between host and pods.
type policyStore struct {
	d *Driver
	// have are those that were read, letter by letter: HNS removes nothing else. It may write what it was given in its own
	// way, so of what was added since then (wrote), this is not known.
	have  map[policyKey][]hns.Policy
	wrote map[policyKey]bool
}

const (
	// batchSize bounds how many policies go into one request: a document of some 100 KB.
	batchSize = 500
	// maxRefusals bounds how many requests of one pass may be refused while it is found out which policies they mean.
	maxRefusals = 64
)

func (*policyStore) Name() string { return "policies" }

// List takes the network as Ensure has just listed it, so that a pass asks HNS once.
func (s *policyStore) List(ctx context.Context) (map[policyKey]policyValue, error) {
	out := map[policyKey]policyValue{}
	if s.d.network.Type != hns.Overlay {
		return out, nil
	}
	if !s.d.listed {
		if _, err := s.read(ctx); err != nil {
			return nil, err
		}
	}
	s.d.listed = false
	s.take(s.d.network.Policies)
	for key, policies := range s.have {
		_, value, _ := parsePolicy(policies[0])
		value.Odd = value.Odd || len(policies) > 1
		out[key] = value
	}
	return out, nil
}

func (s *policyStore) take(policies []hns.Policy) {
	s.have, s.wrote = map[policyKey][]hns.Policy{}, map[policyKey]bool{}
	for _, p := range policies {
		if key, _, ours := parsePolicy(p); ours {
			s.have[key] = append(s.have[key], p)
		}
	}
}

// read asks HNS for the policies that the network has now.
func (s *policyStore) read(ctx context.Context) ([]hns.Policy, error) {
	n, err := s.d.client.Network(ctx, s.d.network.Name)
	switch {
	case err != nil:
		return nil, err
	case n.ID != s.d.network.ID:
		s.d.networksDirty.Store(true)
		return nil, waiting(causeNetworkRemade, "another look at %s, which somebody made again", n.Name)
	}
	s.d.network.Policies = n.Policies
	s.d.sight()
	s.take(n.Policies)
	return n.Policies, nil
}

type policyEntry = reconcile.Entry[policyKey, policyValue]

// Set removes what is there of a key before it adds: HNS need not take a second policy for a subnet, and which of two
// it would remove is not known.
func (s *policyStore) Set(ctx context.Context, entries []policyEntry) []error {
	errs := s.Delete(ctx, entries)
	var fresh []hns.Policy
	var of []int
	for i, e := range entries {
		if errs[i] == nil {
			fresh, of = append(fresh, e.Key.policy(e.Value)), append(of, i)
			s.wrote[e.Key] = true // be it in vain
		}
	}
	note(errs, of, s.batches(ctx, fresh, true))
	return errs
}

// Delete implements reconcile.Store.
func (s *policyStore) Delete(ctx context.Context, entries []policyEntry) []error {
	errs := make([]error, len(entries))
	if slices.ContainsFunc(entries, func(e policyEntry) bool { return s.wrote[e.Key] }) {
		if _, err := s.read(ctx); err != nil {
			for i := range errs {
				errs[i] = err
			}
			return errs
		}
	}
	var old []hns.Policy
	var of []int
	for i, e := range entries {
		for _, p := range s.have[e.Key] {
			old, of = append(old, p), append(of, i)
		}
	}
	note(errs, of, s.batches(ctx, old, false))
	for i, e := range entries {
		if errs[i] == nil {
			delete(s.have, e.Key)
		}
	}
	return errs
}

// note gives the entries that policies belong to their errors.
func note(errs []error, of []int, got []error) {
	for i, err := range got {
		if err != nil {
			errs[of[i]] = err
		}
	}
}

// batches adds or removes policies. Element i of the result belongs to policy i.
func (s *policyStore) batches(ctx context.Context, policies []hns.Policy, add bool) []error {
	var errs []error
	refusals := maxRefusals
	for chunk := range slices.Chunk(policies, batchSize) {
		errs = append(errs, s.modify(ctx, chunk, add, &refusals)...)
	}
	return errs
}

// modify makes one request for many. Where HNS refuses it, it does not say for which policy, nor whether it did a part
// of it: so it is asked what it has now, and what is left goes by halves, until those that it refuses are alone.
func (s *policyStore) modify(ctx context.Context, policies []hns.Policy, add bool, refusals *int) []error {
	errs := make([]error, len(policies))
	request := s.d.client.RemovePolicies
	if add {
		request = s.d.client.AddPolicies
	}
	err := request(ctx, s.d.network.ID, policies)
	if err == nil {
		return errs
	}
	fail := func(err error) []error {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	if *refusals--; *refusals < 0 || ctx.Err() != nil || errors.Is(err, hns.ErrTimeout) || errors.Is(err, hns.ErrUnavailable) {
		return fail(err)
	}
	now, readErr := s.read(ctx)
	if readErr != nil {
		return fail(fmt.Errorf("%w; then %w", err, readErr))
	}
	var left []hns.Policy
	var leftOf []int
	for i, p := range policies {
		if has(now, p, add) != add {
			left, leftOf = append(left, p), append(leftOf, i)
		}
	}
	switch {
	case len(left) == 1 && len(policies) == 1:
		return fail(err)
	case len(left) > 1:
		half := len(left) / 2
		note(errs, leftOf[:half], s.modify(ctx, left[:half], add, refusals))
		note(errs, leftOf[half:], s.modify(ctx, left[half:], add, refusals))
	case len(left) == 1:
		note(errs, leftOf, s.modify(ctx, left, add, refusals))
	}
	return errs
}

// has tells whether a policy is among those that HNS has: one that we want by what it says, for HNS may write it
// differently; one that is to go letter by letter.
func has(now []hns.Policy, p hns.Policy, bySense bool) bool {
	key, value, _ := parsePolicy(p)
	return slices.ContainsFunc(now, func(o hns.Policy) bool {
		if !bySense {
			return o.Type == p.Type && bytes.Equal(o.Settings, p.Settings)
		}
		k, v, ours := parsePolicy(o)
		return ours && k == key && v == value
	})
}
