package hnstest

import (
	"fmt"
	"net/netip"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// AddNamespace adds a namespace, as containerd does for a pod, and returns its ID.
func (h Admin) AddNamespace() string {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	id, _ := h.m.createObject(api.NamespaceKind, api.NewGUID(), []byte(`{"Type":"Host"}`)) // without members, it succeeds
	return id
}

// AddEndpoint adds the endpoint of a pod to the network with that name, as a CNI
// plugin does: into the namespace with this ID, or into none if that is "".
func (h Admin) AddEndpoint(on, name, namespace string, ip netip.Addr) error {
	err := h.network(on, func(n *network) hns.Code {
		id, code := h.m.createEndpoint(api.NewGUID(), n.id, []byte(api.Text(map[string]any{
			"Name": name, "IpConfigurations": []any{map[string]any{"IpAddress": ip}}})))
		if code != 0 || namespace == "" {
			return code
		}
		return h.m.modifyMembers(h.m.object(api.NamespaceKind, namespace), "Add", []byte(api.Text(map[string]string{"EndpointId": id})))
	})
	if err != nil {
		return fmt.Errorf("add the endpoint %s: %w", name, err)
	}
	return nil
}

// JoinNamespace moves the endpoint with that name into a namespace.
func (h Admin) JoinNamespace(endpoint, namespace string) error {
	return h.endpoint(endpoint, func(t *object) hns.Code {
		return h.m.modifyMembers(h.m.object(api.NamespaceKind, namespace), "Add", []byte(api.Text(map[string]string{"EndpointId": t.id})))
	})
}

// DeleteNamespace deletes a namespace without a DEL of the CNI plugin before it.
func (h Admin) DeleteNamespace(id string) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.m.removeObject(api.NamespaceKind, h.m.object(api.NamespaceKind, id))
}

// SetContainers sets which containers use the endpoint with that name, as v1 lists
// them.
func (h Admin) SetContainers(endpoint string, containers ...string) error {
	return h.endpoint(endpoint, func(t *object) hns.Code {
		t.containers = containers
		return 0
	})
}
