package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// natSpares looks at the OutBoundNAT exceptions of the CNI configuration: traffic within the cluster must keep the
// pods' addresses, and that to the world must not.
func natSpares(s Snapshot) Finding {
	name, _ := s.flannelConf()
	networks := s.podNetworks()
	switch {
	case !s.CNI.Known:
		return s.CNI.missing()
	case name == "":
		return skip("there is no configuration of flannel")
	case len(networks) == 0:
		return skip("the pod network is not known: the daemon has no lease or does not answer, and there is no subnet file")
	}
	i := slices.IndexFunc(s.CNI.Value.Files, func(f CNIFile) bool { return f.Name == name })
	spared, err := natExceptions(s.CNI.Value.Files[i].Text)
	if err != nil {
		return fail("Write it anew by flanneld cni-conf --force.", "%s: %v", name, err)
	}
	const fix = "flanneld cni-conf --force writes a configuration that spares the pod and service networks, and with a bridge those of the nodes; it counts for new pods."
	within := func(p netip.Prefix) bool {
		return slices.ContainsFunc(spared, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) })
	}
	_, overlay, _ := s.hns()
	has := func(other netip.Prefix) bool { // pods have not always both families that the cluster has
		return (other.Addr().Is4() || s.hnsHas6(overlay)) &&
			slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Addr().Is4() == other.Addr().Is4() })
	}
	for _, p := range slices.Concat(networks, s.Cluster.Services.Value) {
		if has(p) && !within(p) {
			return fail(fix, "%s spares %s, which leaves out %s", name, or(join(spared...), "nothing"), p)
		}
	}
	if slices.ContainsFunc(spared, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return fail(fix, "%s spares everything, so no answer from the world outside finds back", name)
	}
	if own := s.hostNetwork(); own.IsValid() && !within(own) {
		return warn(fix, "%s spares %s, which leaves out the nodes' own network %s", name, join(spared...), own)
	}
	if !s.Cluster.Services.Known {
		return ok("%s spares %s (whether the service network is among them is not known: %s)", name, join(spared...), or(s.Cluster.Services.WhyNot, "it was not looked at"))
	}
	return ok("%s spares %s", name, join(spared...))
}

// podNetworks are those of the cluster, by the daemon's word, or else by the subnet file's.
func (s Snapshot) podNetworks() (all []netip.Prefix) {
	if n := s.node(); n != nil {
		for _, net := range n.Networks {
			all = append(all, net.Network)
		}
		return all
	}
	both := []netip.Prefix{s.Env.Value.V4Network, s.Env.Value.V6Network}
	return slices.DeleteFunc(both, func(p netip.Prefix) bool { return !p.IsValid() })
}

// hostNetwork is the network of the host's address where pods are on a bridge, from which they reach it as they are;
// zero where that does not matter or is not known.
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

// confFits finds what the plugins say only in the events of pods that never start: they look for the network by the
// configuration's name. And an overlay's pods send from the node's address that stands there.
func confFits(s Snapshot) Finding {
	file, plugins := s.flannelConf()
	network, overlay, found := s.hns()
	switch {
	case !s.CNI.Known:
		return s.CNI.missing()
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case len(plugins) == 0:
		return skip("there is no configuration of flannel")
	case !found:
		return skip("there is no HNS network of ours")
	}
	p := plugins[slices.IndexFunc(plugins, func(p plugin) bool { return p.Type == "flannel" })]
	kind, delegate := "bridge", ""
	if overlay {
		kind = "overlay"
	}
	if p.Delegate != nil {
		delegate = p.Delegate.Type
	}
	const fix = "flanneld cni-conf --force writes one that does; it counts for new pods."
	switch {
	case !strings.EqualFold(p.Name, network.Name):
		return fail(fix, "the name in %s is %s, and that of the network %s", file, or(p.Name, "missing"), network.Name)
	case !strings.HasSuffix(strings.ToLower(delegate), kind):
		return fail(fix, "%s delegates to %s, which is not for an %s", file, or(delegate, "nothing"), network.Type)
	}
	i := slices.IndexFunc(s.CNI.Value.Files, func(f CNIFile) bool { return f.Name == file })
	values, err := members(json.RawMessage(s.CNI.Value.Files[i].Text), "ProviderAddress")
	if err != nil {
		return fail(fix, "%s: %v", file, err)
	}
	for _, v := range values {
		var text string
		if err := json.Unmarshal(v, &text); err != nil || overlay && network.ManagementIP.IsValid() && text != network.ManagementIP.String() {
			return fail(fix, "in %s pods send from %s, and the node's address is %s", file, v, network.ManagementIP)
		}
	}
	return ok("%s, by %s", p.Name, delegate)
}

// podDNS knows the two ways in which a pod of Windows gets its servers: kubelet's, which the runtime hands to a plugin
// that says it takes them, and those that stand in the configuration.
func podDNS(s Snapshot) Finding {
	file, plugins := s.flannelConf()
	switch {
	case !s.CNI.Known:
		return s.CNI.missing()
	case len(plugins) == 0:
		return skip("there is no configuration of flannel")
	}
	for _, p := range plugins {
		for _, name := range []string{"dns", "dnsCapabilities"} {
			if p.Capabilities[name] == true {
				return ok("those of kubelet, by the capability %s", name)
			}
		}
		if n := len(p.DNS.Nameservers); n > 0 || p.Delegate != nil && len(p.Delegate.DNS.Nameservers) > 0 {
			return ok("those in %s", file)
		}
	}
	return warn("flanneld cni-conf --force writes a configuration that hands on kubelet's (--cluster-dns); it counts for new pods.",
		"%s neither names DNS servers nor takes kubelet's (\"capabilities\": {\"dns\": true})", file)
}

// natExceptions are the networks that a Windows configuration keeps from being masqueraded: ExceptionList in the older
// form, Exceptions in that of apiVersion 2.
func natExceptions(text string) (networks []netip.Prefix, err error) {
	for _, key := range []string{"ExceptionList", "Exceptions"} {
		all, err := members(json.RawMessage(text), key)
		if err != nil {
			return nil, err
		}
		for _, value := range all {
			var some []netip.Prefix
			if err := json.Unmarshal(value, &some); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			networks = append(networks, some...)
		}
	}
	return networks, nil
}

// members finds the values of a key, without regard to case, anywhere in a JSON object but within one another.
func members(object json.RawMessage, key string) (found []json.RawMessage, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.EqualFold(name, key) {
			found = append(found, all[name])
			continue
		}
		for _, inner := range objects(all[name]) {
			more, err := members(inner, key)
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
	}
	return found, nil
}

// objects are those that a JSON value is or directly holds.
func objects(value json.RawMessage) []json.RawMessage {
	trimmed := strings.TrimSpace(string(value))
	if strings.HasPrefix(trimmed, "{") {
		return []json.RawMessage{value}
	}
	var list, all []json.RawMessage
	if strings.HasPrefix(trimmed, "[") && json.Unmarshal(value, &list) == nil {
		for _, one := range list {
			all = append(all, objects(one)...)
		}
	}
	return all
}
