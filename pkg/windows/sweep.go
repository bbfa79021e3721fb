package windows

import (
	"context"
	"errors"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// sweeper deletes endpoints of pods whose sandbox is gone, which hold addresses: HNS
// refuses a new pod with an address that host-local has released already (0x803b002f).
// They are left by a crash between host-local's and the plugin's part of a DEL, or by a
// runtime that lost its state.
//
// An endpoint is deleted if it is on our network, is not remote (kube-proxy's are, and
// those that stand for peers), has the name of a pod's, and two looks in a row find that
// no namespace has it, and that
//
//	its document names a namespace       which does not exist, and no container uses it, or
//	its document names none              it is not attached to anything either, and its name
//	                                     is that of the CNI project's plugins
//
// An endpoint that cannot be read or deleted stays, and does not keep others from being
// deleted. If HNS does not answer, or refuses a list, the look ends, and the next one
// has no suspects.
//
// Its fields belong to its own goroutine, run. Of the Driver, it uses only what goroutines
// share: observed, client and options.
type sweeper struct {
	*Driver
	others   map[string]bool // IDs of endpoints that stay and need not be read again, also after a look that failed: remote, or on other networks
	suspects map[string]bool // IDs that the last look found to be without a sandbox
}

// run looks again and again until ctx ends. It runs beside the passes, because HNS may
// take seconds for each endpoint.
func (s *sweeper) run(ctx context.Context) {
	r := reconcile.Runner{
		Resync: s.pace.Sweep,
		Later:  true, // not at the start
		Work: func(ctx context.Context) (time.Duration, error) {
			last := s.observed.Load()
			if last == nil || last.pods == "" {
				return 0, nil // no pods are on a network of ours
			}
			err := s.look(ctx, last.pods, last.name)
			if err != nil {
				s.suspects = nil
			}
			return 0, err
		},
		Tell: func(err error) {
			if err != nil {
				s.opts.Log.Debug("looking for endpoints of pods that are gone", "error", err)
			}
		},
	}
	r.Run(ctx)
}

// look reads the endpoints that it does not know yet, and deletes those that the last
// look suspected, too. Endpoints are listed before namespaces, so that an endpoint's
// namespace that is missing was deleted, and is not just being created.
func (s *sweeper) look(ctx context.Context, network, name string) error {
	ids, err := s.client.EndpointIDs(ctx, network)
	if err != nil {
		return err
	}
	namespaces, err := s.client.Namespaces(ctx)
	if err != nil {
		return err
	}
	if len(namespaces) == 0 {
		return errors.New("HNS lists no namespace, not even that of the host")
	}
	inUse, exists := map[string]bool{}, map[string]bool{}
	for _, n := range namespaces {
		exists[strings.ToLower(n.ID)] = true
		for _, id := range n.Endpoints {
			inUse[strings.ToLower(id)] = true
		}
	}
	others, suspects := map[string]bool{}, map[string]bool{}
	for _, id := range ids {
		if id = strings.ToLower(id); s.others[id] {
			others[id] = true
		}
	}
	s.others = others // without those that HNS does not list any longer
	for _, id := range ids {
		id = strings.ToLower(id)
		if inUse[id] || others[id] { // in use by a pod, or by the host
			continue
		}
		e, err := s.client.Endpoint(ctx, id)
		if err == nil && (e.Remote || !strings.EqualFold(e.Network, network)) {
			others[id] = true
			continue
		}
		gone := false
		if err == nil {
			gone, err = s.abandoned(ctx, e, name, exists)
		}
		switch {
		case err != nil && isRefusal(err): // the endpoint stays, unless somebody has just deleted it
			s.opts.Log.Debug("could not find out whether the pod of an endpoint is gone", "endpoint", id, "error", err)
		case err != nil:
			return err
		case gone && s.suspects[id]:
			err := s.delete(ctx, e)
			if err != nil && !isRefusal(err) {
				return err
			}
			if err != nil {
				suspects[id] = true // the next look tries again
			}
		case gone:
			suspects[id] = true
		}
	}
	s.suspects = suspects
	return nil
}

// abandoned reports whether an endpoint that is in no namespace belongs to a pod that is
// gone, as the table above says. exists are the IDs of all namespaces, in lower case.
func (s *sweeper) abandoned(ctx context.Context, e hns.Endpoint, network string, exists map[string]bool) (bool, error) {
	switch {
	case e.Name == "" || e.Name == hns.HostEndpoint(network) || e.Name == hns.SourceVIPEndpoint:
		return false, nil // an endpoint without a name is kube-proxy's for the source VIP
	case e.Namespace != "" && exists[strings.ToLower(e.Namespace)]:
		return false, nil
	case e.Namespace == "" && !strings.HasSuffix(e.Name, "_"+network): // <container ID>_<network>
		return false, nil
	}
	use, err := s.client.EndpointUse(ctx, e.ID)
	if errors.Is(err, hns.ErrNotFound) {
		return false, nil
	}
	return err == nil && len(use.Containers) == 0 && (e.Namespace != "" || !use.Attached), err
}

// delete deletes an endpoint, and counts that as a repair (in the metrics).
func (s *sweeper) delete(ctx context.Context, e hns.Endpoint) error {
	if err := s.client.DeleteEndpoint(ctx, e.ID); err != nil && !errors.Is(err, hns.ErrNotFound) {
		s.opts.Log.Debug("could not delete the endpoint of a pod whose sandbox is gone", "endpoint", e.Name, "addresses", e.IPs, "error", err)
		return err
	}
	s.opts.Log.Info("deleted the endpoint of a pod whose sandbox is gone", "cause", causeEndpointSwept, "endpoint", e.Name, "addresses", e.IPs, "namespace", e.Namespace)
	s.opts.Repairs.Count("endpoints", 1)
	return nil
}
