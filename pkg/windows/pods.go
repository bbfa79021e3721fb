package windows

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// podWatcher finds running pods without an endpoint on our network. It runs in a
// goroutine of its own, because HNS may take seconds for a list. Each minute it reads
// the pods that the runtime has connected, and the IDs of the network's endpoints. It
// reads the namespaces only if it does not know a pod's endpoint, or if the endpoint is gone.
//
//	pod's endpoint, as w.endpoints has it   pod's namespace in HNS           the pod is
//	any                                     has an endpoint of our network   connected
//	exists                                  has none                         connected, as while no namespaces are read
//	exists                                  is gone                          ignored from now on: the pod has ended
//	is gone                                 any other                        lost
//	not known                               has none                         lost
//	not known                               is gone                          lost, or ignored if the first look knew the
//	                                                                         pod: the runtime may have lost the sandbox
//
// A pod that is being deleted has no endpoint for a moment. Therefore a pod is reported
// when two looks in a row find it lost. A look that fails ends the row, and changes nothing
// for pods that are reported.
type podWatcher struct {
	*Driver
	first     map[string]bool   // sandboxes of the first look; nil: there was none
	endpoints map[string]string // IDs of endpoints, by the IDs of the sandboxes of pods that this run saw connected
	suspects  []hns.Pod         // that the last look found lost; if it failed, those of reported
	reported  []hns.Pod         // whose names PodsWithoutEndpoint returns
}

// run looks every pace.Pods, until ctx ends.
func (w *podWatcher) run(ctx context.Context) {
	r := reconcile.Runner{
		Resync: w.pace.Pods,
		Later:  true, // not at the start
		Work: func(ctx context.Context) (time.Duration, error) {
			// 0: the next look is at the next Resync, also after an error, since there is no Retry.
			switch last := w.observed.Load(); { // what the last pass found in HNS
			case last == nil: // before the first pass
			case last.name == "": // no HNS network is wanted, so no pod is to have an endpoint
				w.suspects, w.reported = nil, nil
				w.setLostPods(nil)
			case last.pods != "": // else HNS lacks the network, or it is only a switch
				return 0, w.look(ctx, last.pods, last.name)
			}
			return 0, nil
		},
		Tell: func(err error) {
			if err != nil {
				w.opts.Log.Debug("looking for pods without endpoint", "error", err)
			}
		},
	}
	r.Run(ctx)
}

// look is one look at the pods on the network with this ID and name. pod.Sandbox is the ID
// of the container that holds the pod's network, pod.Namespace that of its HNS namespace.
// In the directory PodResults, the container runtime keeps a file, the result of the CNI
// plugin, for each pod that it has connected. It removes the file when the pod ends.
func (w *podWatcher) look(ctx context.Context, network, name string) error {
	suspects := w.suspects
	w.suspects = w.reported // if this look fails
	all, err := hns.ReadPods(w.opts.PodResults)
	if err != nil {
		return err
	}
	pods := slices.DeleteFunc(all, func(p hns.Pod) bool { return p.Network != name })
	if w.first == nil {
		w.first = map[string]bool{}
		for _, p := range pods {
			w.first[p.Sandbox] = true
		}
	}
	var candidates []hns.Pod
	if len(pods) > 0 {
		if candidates, err = w.candidates(ctx, network, pods); err != nil {
			return err
		}
	}
	w.reported = slices.DeleteFunc(slices.Clone(candidates), func(p hns.Pod) bool {
		return !slices.ContainsFunc(suspects, func(s hns.Pod) bool { return s.Sandbox == p.Sandbox })
	})
	w.suspects = candidates
	names := hns.PodNames(w.reported)
	if !slices.Equal(names, w.PodsWithoutEndpoint()) {
		w.logLost(names)
	}
	w.setLostPods(names)
	return nil
}

// logLost logs the names of lost pods, or that there are none any more.
func (w *podWatcher) logLost(names []string) {
	if len(names) == 0 {
		w.opts.Log.Info("no running pod lacks its endpoint any longer", "cause", causePodsLost)
		return
	}
	w.opts.Log.Warn("running pods have lost their endpoints in HNS and have no network: delete these pods, and restart kube-proxy",
		"cause", causePodsLost, "count", len(names), "pods", strings.Join(names, ", "))
}

// candidates returns the pods that are lost now by the table above, and records the
// endpoints of the others in w.endpoints.
func (w *podWatcher) candidates(ctx context.Context, network string, pods []hns.Pod) (candidates []hns.Pod, err error) {
	ids, err := w.client.EndpointIDs(ctx, network)
	if err != nil {
		return nil, err
	}
	connected := func(p hns.Pod) bool {
		return slices.ContainsFunc(ids, func(id string) bool { return strings.EqualFold(id, w.endpoints[p.Sandbox]) })
	}
	unknown := slices.DeleteFunc(slices.Clone(pods), connected)
	if len(unknown) == 0 {
		return nil, nil
	}
	namespaces, err := w.client.Namespaces(ctx)
	if err == nil && len(namespaces) == 0 {
		err = errors.New("HNS lists no namespace, not even that of the host")
	}
	if err != nil {
		return nil, err
	}
	known, endpoints := map[string]string{}, hns.NewPodEndpoints(ids, namespaces)
	for _, p := range pods {
		id, exists := endpoints.Of(p)
		former, seen := w.endpoints[p.Sandbox]
		switch {
		case id != "":
			known[p.Sandbox] = id
			continue
		case !exists && connected(p):
			// The runtime removed the namespace and left the file in PodResults, so this is no pod any more. It counts as
			// known to the first look, and so is ignored when somebody deletes its endpoint.
			w.first[p.Sandbox] = true
			continue
		case seen:
			known[p.Sandbox] = former
		}
		if !connected(p) && (exists || seen || !w.first[p.Sandbox]) {
			candidates = append(candidates, p)
		}
	}
	w.endpoints = known
	return candidates, nil
}

// setLostPods records the names of lost pods, and causes a pass, which reports them.
func (d *Driver) setLostPods(names []string) {
	if slices.Equal(names, d.PodsWithoutEndpoint()) {
		return
	}
	d.lostPods.Store(&names)
	reconcile.Notify(d.changes)
}

// PodsWithoutEndpoint implements dataplane.Dataplane.
func (d *Driver) PodsWithoutEndpoint() []string {
	if names := d.lostPods.Load(); names != nil {
		return *names
	}
	return nil
}
