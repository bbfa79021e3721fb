package windows

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// policyStore is the system's side of the table Driver.policies (reconcile.Store):
// the policies of our network that are ours, see parsePolicy. Only the loop calls
// it, through the table, and only while there is a network (d.network is not nil): see
// Apply and Found.
//
// HNS removes a policy only if the request has exactly the text that HNS lists.
// It may list a policy with another text than it was added with. Therefore the
// store keeps the texts that it read, and reads again before it removes a policy
// that it has added since.
type policyStore struct {
	d        *Driver
	existing map[policyKey][]hns.Policy // as read; more than one is a duplicate
	added    map[policyKey]bool         // since then; of a request that failed, HNS may have added some
}

const (
	// batchSize bounds the policies of one request, to a document of about 100 KB.
	// Whether HNS before 10 accepts 500 is not known, so it gets fewer.
	batchSize    = 500
	oldBatchSize = 50
	// maxRefusals bounds the requests of one Set or Delete that HNS may refuse while
	// the store narrows down which policies are to blame. To find one of 500 takes about
	// 10 refusals. After maxRefusals, a refusal counts for all policies of its request.
	maxRefusals = 64
)

func (*policyStore) Name() string { return "policies" }

// List takes the policies of the network that Ensure has just listed, so that a
// pass lists networks only once.
func (s *policyStore) List(ctx context.Context) (map[policyKey]policyValue, error) {
	out := map[policyKey]policyValue{}
	if s.d.network.Type != hns.Overlay {
		return out, nil
	}
	if !s.d.policiesFresh { // else Ensure has just listed them
		if err := s.read(ctx); err != nil {
			return nil, err
		}
	}
	s.d.policiesFresh = false
	s.take(s.d.network.Policies)
	for key, policies := range s.existing {
		_, value, _ := parsePolicy(policies[0])
		value.Invalid = value.Invalid || len(policies) > 1 // differs from each wanted value, so Set replaces it
		out[key] = value
	}
	if s.d.noHostRoute == s.d.network.ID {
		out[hostRouteKey()] = policyValue{} // HNS refuses it, so the table must not try again
	}
	return out, nil
}

// take replaces what was read by policies, all of the network, and forgets what was added.
func (s *policyStore) take(policies []hns.Policy) {
	s.existing, s.added = map[policyKey][]hns.Policy{}, map[policyKey]bool{}
	for _, p := range policies {
		if key, _, ours := parsePolicy(p); ours {
			s.existing[key] = append(s.existing[key], p)
		}
	}
}

// read reads the network's policies from HNS.
func (s *policyStore) read(ctx context.Context) error {
	n, err := s.d.client.Network(ctx, s.d.network.Name)
	switch {
	case err != nil:
		return err
	case n.ID != s.d.network.ID:
		s.d.networksDirty.Store(true)
		return dataplane.Waiting(causeNetworkRemade, "the next pass: somebody made the network %s again", n.Name)
	}
	s.d.network.Policies = n.Policies
	s.d.recordObserved()
	s.take(n.Policies)
	return nil
}

// policyEntry is an entry of the table.
type policyEntry = reconcile.Entry[policyKey, policyValue]

// policyChange is a policy to add or to remove.
type policyChange struct {
	hns.Policy
	key policyKey
	err *error // set if it fails
}

// fail sets the error of all changes.
func fail(changes []policyChange, err error) {
	for _, c := range changes {
		*c.err = err
	}
}

// Set removes existing policies of a key before it adds one: HNS may refuse a
// second policy for a subnet, and with two it is not known which it would remove.
func (s *policyStore) Set(ctx context.Context, entries []policyEntry) []error {
	errs := s.Delete(ctx, entries) // keys without a policy cost no request
	var add []policyChange
	for i, e := range entries {
		if errs[i] == nil {
			add = append(add, policyChange{e.Key.policy(e.Value), e.Key, &errs[i]})
		}
	}
	slices.SortFunc(add, func(a, b policyChange) int { // the table has no order
		return cmp.Or(strings.Compare(a.Type, b.Type), bytes.Compare(a.Settings, b.Settings))
	})
	s.modifyAll(ctx, add, true)
	for i, e := range entries {
		if _, refused := errors.AsType[refusedPolicy](errs[i]); refused && e.Key == hostRouteKey() {
			s.d.noHostRoute = s.d.network.ID
			s.d.warnOnce(causeNoHostRoute, "HNS refuses the policy HostRoute, so the host and the pods of this node do not reach each other; "+
				"other nodes are not affected. Restart flanneld to try again", "error", errs[i])
			errs[i] = nil
		}
	}
	return errs
}

// Delete implements reconcile.Store.
func (s *policyStore) Delete(ctx context.Context, entries []policyEntry) []error {
	if slices.ContainsFunc(entries, func(e policyEntry) bool { return s.added[e.Key] }) {
		if err := s.read(ctx); err != nil {
			return slices.Repeat([]error{err}, len(entries))
		}
	}
	errs := make([]error, len(entries))
	var remove []policyChange
	for i, e := range entries {
		for _, p := range s.existing[e.Key] {
			remove = append(remove, policyChange{p, e.Key, &errs[i]})
		}
	}
	s.modifyAll(ctx, remove, false)
	for i, e := range entries {
		if errs[i] == nil {
			delete(s.existing, e.Key)
		}
	}
	return errs
}

// modifyAll adds or removes policies in batches. The errors are in the changes.
func (s *policyStore) modifyAll(ctx context.Context, changes []policyChange, add bool) {
	refusals := maxRefusals
	size := batchSize
	if s.d.version.Major < 10 {
		size = oldBatchSize
	}
	for batch := range slices.Chunk(changes, size) {
		s.modify(ctx, batch, add, &refusals)
	}
}

// modify adds or removes policies with one request. If HNS refuses it, HNS does
// not say which policy it refuses, nor whether it did a part of the request.
// Therefore modify reads the policies again, and sends what is not done yet in
// two halves, until a refused policy is alone in its request. refusals is what is left
// of maxRefusals.
func (s *policyStore) modify(ctx context.Context, changes []policyChange, add bool, refusals *int) {
	var policies []hns.Policy
	for _, c := range changes {
		policies = append(policies, c.Policy)
	}
	request := s.d.client.RemovePolicies
	if add {
		request = s.d.client.AddPolicies
	}
	err := request(ctx, s.d.network.ID, policies)
	if add {
		for _, c := range changes {
			s.added[c.key] = true
		}
	}
	if err == nil {
		return
	}
	if *refusals--; *refusals < 0 || ctx.Err() != nil || errors.Is(err, hns.ErrTimeout) || errors.Is(err, hns.ErrUnavailable) {
		fail(changes, err)
		return
	}
	if readErr := s.read(ctx); readErr != nil {
		fail(changes, fmt.Errorf("%w; then %w", err, readErr))
		return
	}
	left := slices.DeleteFunc(slices.Clone(changes), func(c policyChange) bool { // is done: added, or removed
		return contains(s.d.network.Policies, c.Policy, add) == add
	})
	switch {
	case len(left) == 0: // HNS did all of the request
	case len(changes) == 1:
		if add && isPolicyRefusal(err) {
			err = refusedPolicy{err}
		}
		fail(changes, err)
	default:
		for half := range slices.Chunk(left, (len(left)+1)/2) {
			s.modify(ctx, half, add, refusals)
		}
	}
}

// refusedPolicy is the error of a request to add one policy, which HNS refuses.
type refusedPolicy struct{ error }

func (r refusedPolicy) Unwrap() error { return r.error }

// isPolicyRefusal reports whether an error means that HNS does not accept a
// policy. Other errors may pass.
func isPolicyRefusal(err error) bool {
	refusals := []hns.Code{hns.InvalidPolicy, hns.InvalidPolicyType, hns.InvalidJSON, hns.InvalidParameter}
	e, ok := errors.AsType[*hns.Error](err)
	return ok && (slices.Contains(refusals, e.Code) || errors.Is(e, hns.ErrUnsupported))
}

// contains reports whether HNS has a policy. With byValue, it compares the parsed values:
// HNS may change the text of a policy that was added. Without, it compares the texts: HNS may
// have two policies of one value, of which only one was removed.
func contains(policies []hns.Policy, p hns.Policy, byValue bool) bool {
	key, value, _ := parsePolicy(p)
	return slices.ContainsFunc(policies, func(o hns.Policy) bool {
		if !byValue {
			return o.Type == p.Type && bytes.Equal(o.Settings, p.Settings)
		}
		k, v, ours := parsePolicy(o)
		return ours && k == key && v == value
	})
}
