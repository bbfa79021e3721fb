package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// The checks in this file run only if what they need is there: see their rows
// in windows.go. Each needs a configuration that calls the flannel plugin
// (confCallsFlannel), and confMatches also the HNS network (hnsNetworkExists). s.hns returns
// that network, whether the backend is vxlan (overlay), and whether there is one.

// natExcepts compares the OutBoundNAT exceptions of the CNI configuration with
// the networks of the cluster: packets to these must keep the pods' addresses,
// and packets to other networks must be masqueraded.
func natExcepts(s Snapshot) Finding {
	conf, _ := s.flannelConf()
	networks := s.podNetworks()
	excepted, err := natExceptions(conf.Text)
	if err != nil {
		return fail("Run flanneld cni-conf --force to write it again.", "%s: %v", conf.Name, err)
	}
	const fix = "Run flanneld cni-conf --force. It excepts the pod and service networks, with host-gw also the " +
		"nodes' network. Recreate the pods."
	isExcepted := func(p netip.Prefix) bool {
		return slices.ContainsFunc(excepted, func(e netip.Prefix) bool {
			return e.Bits() <= p.Bits() && e.Contains(p.Addr())
		})
	}
	_, overlay, _ := s.hns()
	podsHaveFamily := func(other netip.Prefix) bool { // of a dual-stack cluster, pods may have only IPv4
		return (other.Addr().Is4() || s.podsHaveIPv6(overlay)) &&
			slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Addr().Is4() == other.Addr().Is4() })
	}
	for _, p := range slices.Concat(networks, s.Cluster.Services.Value) {
		if podsHaveFamily(p) && !isExcepted(p) {
			return fail(fix, "%s excepts %s, but not %s", conf.Name, cmp.Or(join(excepted...), "nothing"), p)
		}
	}
	if slices.ContainsFunc(excepted, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return fail(fix, "%s excepts all networks, so that pods get no answers from outside the cluster", conf.Name)
	}
	if network := s.hostNetwork(); network.IsValid() && !isExcepted(network) {
		return warn(fix, "%s excepts %s, but not the nodes' network %s", conf.Name, join(excepted...), network)
	}
	return ok("%s excepts %s%s%s", conf.Name, join(excepted...), s.notCompared(), s.withoutLoopbackDSR())
}

// notCompared says which networks of the cluster natExcepts could not compare; "": none.
func (s Snapshot) notCompared() string {
	var unknown []string
	if missing := s.Cluster.Services.missing(); missing.Verdict != "" {
		unknown = append(unknown, because("the service network", missing))
	}
	if _, overlay, _ := s.hns(); !overlay { // see hostNetwork
		if missing := firstReason(networksKnown(s), interfacesKnown(s)); missing.Verdict != "" {
			unknown = append(unknown, because("the nodes' network", missing))
		}
	}
	if len(unknown) == 0 {
		return ""
	}
	return " (not known: " + several(unknown) + ")"
}

// withoutLoopbackDSR says that the CNI configuration lacks loopbackDSR, a policy with which
// pods reach themselves through a Service. "": it has the policy, or HNS or kube-proxy does
// not support it. cni-conf leaves it out if HNS refuses it.
func (s Snapshot) withoutLoopbackDSR() string {
	h := s.Windows.HNS
	uses, known := UsesDSR(s.Windows.KubeProxy.Value)
	if s.loopbackDSR() || !h.Known || h.Value.Problem != "" || !h.Value.supportsDSR() || !known || !uses {
		return ""
	}
	return "; loopbackDSR is off, and a pod cannot reach itself through a Service: HNS refuses it " +
		"(cause=pod-nat-refused in the log of cni-conf), or --loopback-dsr=false"
}

// hostNetwork returns the network of the host's address if the backend is
// host-gw: there pods reach the nodes with their own addresses. It is zero with
// another backend, or if the network is not known.
func (s Snapshot) hostNetwork() netip.Prefix {
	network, overlay, found := s.hns()
	if overlay || !found {
		return netip.Prefix{}
	}
	for _, in := range s.Interfaces.Value.Interfaces {
		for _, a := range in.Addrs {
			if a.IP == network.ManagementIP && a.Net.IsValid() {
				return a.Net.Masked()
			}
		}
	}
	return netip.Prefix{}
}

// confMatches compares the CNI configuration with the HNS network. The plugins
// find the network by the configuration's name; if there is none, only the
// events of pods that do not start have the error. In an overlay, the
// configuration also has the node's address (ProviderAddress), from which HNS
// sends the pods' packets to other nodes.
func confMatches(s Snapshot) Finding {
	conf, plugins := s.flannelConf()
	network, overlay, _ := s.hns()
	// There is one: see the check's needs (confCallsFlannel).
	p := plugins[slices.IndexFunc(plugins, func(p plugin) bool { return p.Type == "flannel" })]
	kind, delegate := "bridge", "" // win-bridge or sdnbridge, win-overlay or sdnoverlay
	if overlay {
		kind = "overlay"
	}
	if p.Delegate != nil {
		delegate = p.Delegate.Type
	}
	const fix = "Run flanneld cni-conf --force, and recreate the pods."
	switch {
	case !strings.EqualFold(p.Name, network.Name):
		return fail(fix, "the name in %s is %s, but the network is %s", conf.Name, cmp.Or(p.Name, "missing"),
			network.Name)
	case !strings.HasSuffix(strings.ToLower(delegate), kind):
		return fail(fix, "%s delegates to %s, which does not support the type %s", conf.Name,
			cmp.Or(delegate, "nothing"), network.Type)
	}
	values, err := members(conf.Text, "ProviderAddress") // none in a configuration for version 1 of the HNS API
	if err != nil {
		return fail(fix, "%s: %v", conf.Name, err)
	}
	for _, v := range values {
		var text string
		err := json.Unmarshal(v, &text)
		if err != nil || overlay && network.ManagementIP.IsValid() && text != network.ManagementIP.String() {
			return fail(fix, "the provider address in %s is %s, but the node's address is %s", conf.Name, v,
				network.ManagementIP)
		}
	}
	return ok("%s, by %s", p.Name, delegate)
}

// podDNS finds a configuration with which pods have no DNS servers. There are
// two ways to set them: the runtime passes kubelet's to a plugin that declares
// the capability, or they are in the configuration. sdnbridge and sdnoverlay
// name the capability dnsCapabilities, the other plugins dns.
func podDNS(s Snapshot) Finding {
	conf, plugins := s.flannelConf()
	for _, p := range plugins {
		for _, name := range []string{"dns", "dnsCapabilities"} {
			if p.Capabilities[name] == true {
				return ok("kubelet's, by the capability %s", name)
			}
		}
		if n := len(p.DNS.Nameservers); n > 0 || p.Delegate != nil && len(p.Delegate.DNS.Nameservers) > 0 {
			return ok("those in %s", conf.Name)
		}
	}
	return warn("Run flanneld cni-conf --force, which writes a configuration with kubelet's DNS servers "+
		"(--cluster-dns), and recreate the pods.",
		"%s neither has DNS servers nor requests kubelet's (\"capabilities\": {\"dns\": true})", conf.Name)
}

// natExceptions returns the networks to which HNS does not masquerade packets.
// They are in ExceptionList, or with apiVersion 2 in Exceptions.
func natExceptions(text string) (networks []netip.Prefix, err error) {
	for _, key := range []string{"ExceptionList", "Exceptions"} {
		values, err := members(text, key)
		if err != nil {
			return nil, err
		}
		for _, value := range values {
			var list []netip.Prefix
			if err := json.Unmarshal(value, &list); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			networks = append(networks, list...)
		}
	}
	return networks, nil
}

// members returns the values of a key, which is compared without regard to
// case, in all objects of a JSON text, also nested ones. It does not search in
// the values that it returns.
func members(text, key string) (values []json.RawMessage, err error) {
	var root any
	if err := json.Unmarshal([]byte(text), &root); err != nil {
		return nil, err
	}
	var search func(value any)
	search = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				if strings.EqualFold(name, key) {
					raw, _ := json.Marshal(v[name]) // it was JSON before
					values = append(values, raw)
				} else {
					search(v[name])
				}
			}
		case []any:
			for _, item := range v {
				search(item)
			}
		}
	}
	search(root)
	return values, nil
}
